"""Adversarial and triplet training: their equations, who learns when, and what they hide."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from support.steps import make_step
from tacit.attacks import Scores, keep_scores
from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.errors import DataError, PrivacyRefused, UsageError
from tacit.training.data.attributes import Attribute, attribute_of
from tacit.training.data.training_data import TrainingData, prepare
from tacit.training.dp.random_source import RandomSource
from tacit.training.dp.sampling import Grouped
from tacit.training.methods.adversarial import AdversarialSettings, from_uniform
from tacit.training.methods.triplet import Partners, TripletSettings, triplet_loss
from tacit.training.models import networks, tokens
from tacit.training.models.last_states import LastStates
from tacit.training.models.optimizers import make_optimizer
from tacit.training.models.recurrent import LSTMForCausalLM
from tacit.training.phases import session
from tacit.training.phases.checkpoints import read_place
from tacit.training.phases.loop import Loop
from tacit.training.settings import OptimizerSettings, Run
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.tasks import NextWord
from tacit.verification.runs import verify

TASK = NextWord()
SMALL: dict[str, dict[str, Any]] = {
    "lstm": {"kind": "lstm", "embedding_size": 6, "hidden_size": 5, "layers": 2},
    "gpt2": {"kind": "gpt2", "hidden_size": 8, "layers": 2, "heads": 2, "context": 32},
    "llama": {"kind": "llama", "hidden_size": 8, "layers": 1, "heads": 2, "context": 32},
}


def dialogs(authors: int = 3, each: int = 6, own_share: float = 0.5, seed: int = 0) -> Corpus:
    """Authors with a few words of their own among those that everybody uses."""
    rng = np.random.default_rng(seed)
    common = [f"w{i}" for i in range(40)]
    rows = []
    for author in range(authors):
        own = [f"a{author}x{i}" for i in range(6)]
        for number in range(each):
            words = [
                str(rng.choice(own if rng.random() < own_share else common))
                for _ in range(int(rng.integers(8, 12)))
            ]
            rows.append(
                {
                    "id": f"{author}-{number}",
                    "user": f"u{author}",
                    "label": "odd" if number % 2 else "even",
                    "text": " ".join(words),
                }
            )
    return Corpus.from_records(rows)


class Bench:
    """A corpus, a model and all that a method is made of."""

    def __init__(self, kind: str = "lstm", corpus: Corpus | None = None, **sizes: Any) -> None:
        self.corpus = corpus or dialogs()
        self.words: PreTrainedTokenizerBase = tokens.word_vocabulary(self.corpus, min_count=1)[0]
        self.examples: Examples = TASK.encode(self.corpus, self.words, context=32)
        self.training_data: TrainingData = prepare(self.examples, self.corpus, [], None)
        self.attribute: Attribute = attribute_of("user", self.corpus, "")
        self.kind, self.sizes = kind, sizes

    def model(self) -> nn.Module:
        made = networks.scratch_model(
            SMALL[self.kind] | self.sizes, "next-word", tokenizer=self.words, seed=3
        )
        return made.train()

    def method(self, model: nn.Module, given: Any = None, batch: int = 8) -> Any:
        name = "adversarial" if isinstance(given, AdversarialSettings) else "triplet"
        return make_step(
            "plain" if given is None else name, model, TASK.losses, self.training_data,
            randomness=RandomSource(5), options=given, attribute=self.attribute, batch=batch,
        )  # fmt: skip

    def train(self, given: Any, steps: int, rate: float = 5e-3) -> nn.Module:
        model, by = self.model(), OptimizerSettings(name="adam", learning_rate=rate)
        method = self.method(model, given, batch=24)
        Loop(model, method, make_optimizer(model, by), by, steps, RandomSource(5)).run()
        return model


def last_by_hand(model: Any, ids: np.ndarray) -> Tensor:
    """The state from which the end of one record is predicted, alone and unpadded."""
    given = torch.from_numpy(ids.astype(np.int64)).unsqueeze(0)
    if isinstance(model, LSTMForCausalLM):
        return model.body(given)[0][0, -2]
    return model(input_ids=given, output_hidden_states=True).hidden_states[-1][0, -2]


# --- last hidden states ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SMALL)
def test_the_last_state_of_a_record_does_not_depend_on_its_batch(kind: str) -> None:
    bench = Bench(kind)
    model = bench.model().eval()
    batch = bench.examples.batch(np.arange(6))
    states = LastStates(model, next_words=True)
    with states.reading(batch) as read:
        TASK.losses(model, batch)
    for found in (read[0], states.of(batch)):
        for row in range(6):
            wanted = last_by_hand(model, bench.examples.ids[row])
            assert torch.allclose(found[row], wanted, atol=1e-5)


def test_an_encoder_is_read_at_its_first_token_and_a_classifier_at_its_last() -> None:
    ids = torch.tensor([[5, 6, 7, 0], [5, 6, 7, 8]])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    for kind, at in (("bert", [0, 0]), ("gpt2", [2, 3])):
        sizes = {"kind": kind, "hidden_size": 8, "layers": 1, "heads": 2, "vocab_size": 30}
        model = networks.scratch_model(sizes, "classification", labels=["a", "b"]).eval()
        model.config.pad_token_id = 0
        states = LastStates(model, next_words=False)
        with states.reading(batch) as read:
            done = model(**batch, output_hidden_states=True).hidden_states[-1]
        assert states.width == 8
        wanted = done[torch.arange(2), torch.tensor(at)]
        assert torch.allclose(read[0], wanted)
        assert torch.allclose(states.of(batch), wanted, atol=1e-5)


# --- the equations --------------------------------------------------------------------------------


def test_the_privacy_loss_of_a_discriminator_is_equation_2() -> None:
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    by_hand = 0.0
    for row in scores.tolist():
        total = sum(math.exp(s) for s in row)
        by_hand += -sum(math.log(math.exp(s) / total) for s in row) / 3
    assert float(from_uniform(scores)) == pytest.approx(by_hand / 4, rel=1e-5)
    assert float(from_uniform(scores)) > math.log(3)


def test_the_triplet_loss_is_equation_3_for_a_pair_of_each_kind() -> None:
    h_x, h_p, h_n = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    both = triplet_loss(
        torch.stack([h_x, h_x]), torch.stack([h_p, h_n]), torch.tensor([False, True]), 1e9
    )
    by_hand = sum(float(a - b) ** 2 for a, b in zip(h_x, h_p, strict=True)) - sum(
        float(a - b) ** 2 for a, b in zip(h_x, h_n, strict=True)
    )
    assert 2 * float(both) == pytest.approx(by_hand, rel=1e-5)


def test_different_authors_are_drawn_together_and_one_author_driven_apart() -> None:
    one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    for same, apart in ((True, True), (False, False)):
        state = one.clone().requires_grad_()
        triplet_loss(state, other, torch.tensor([same]), 4.0).backward()
        assert state.grad is not None
        after = one - 0.1 * state.grad
        assert (float((after - other).norm()) > 1) is apart


@given(reach=st.floats(0, 1e6), bound=st.floats(0.1, 100), same=st.lists(st.booleans(), min_size=1))
def test_the_triplet_loss_has_a_least_value(reach: float, bound: float, same: list[bool]) -> None:
    states = torch.full((len(same), 3), reach).requires_grad_()
    loss = triplet_loss(states, -states.detach(), torch.tensor(same), bound)
    assert float(loss.detach()) >= -bound * 1.001
    loss.backward()
    if all(same) and 12 * reach**2 > bound:  # beyond the bound nothing is gained
        assert states.grad is not None
        assert not states.grad.any()


@pytest.mark.parametrize("kind", SMALL)
def test_a_step_minimizes_equation_1(kind: str) -> None:
    """Loss and gradient of the method are those of the formula, record by record."""
    still: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0} if kind == "gpt2" else {}
    bench = Bench(kind, **still)
    rows = np.arange(8)
    given = TripletSettings(privacy_weight=0.7, batches="grouped", bound=50.0)
    model = bench.model()
    method = bench.method(model, given)
    loss, _ = method._loss(1, rows)
    partners = Partners(bench.attribute.codes, bench.training_data.rows).draw(
        rows, RandomSource(5).stream("subset", 1)
    )
    by_hand, tasks = torch.zeros(()), []
    for row, partner in zip(rows, partners, strict=True):
        tasks.append(TASK.losses(model, bench.examples.batch(np.array([row])))[0])
        a, b = (last_by_hand(model, bench.examples.ids[r]) for r in (row, partner))
        sign = -1 if bench.attribute.codes[row] == bench.attribute.codes[partner] else 1
        by_hand = by_hand + sign * (a - b).square().sum()
    wanted = torch.stack(tasks).mean() + 0.7 * by_hand / len(rows)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-3, abs=1e-4)
    weights = list(model.parameters())
    ours, theirs = torch.autograd.grad(loss, weights), torch.autograd.grad(wanted, weights)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


# --- who learns when ------------------------------------------------------------------------------


def test_discriminator_and_model_are_optimized_in_turn() -> None:
    bench = Bench()
    model = bench.model()
    method = bench.method(model, AdversarialSettings(privacy_weight=2.0, hidden_size=7))
    judge = method.discriminator
    assert [tuple(p.shape) for p in judge.parameters()] == [(7, 5), (7,), (3, 7), (3,)]
    rows = np.arange(8)
    authors = torch.from_numpy(bench.attribute.codes[rows])
    held = [p.detach().clone() for p in model.parameters()]
    before = [p.detach().clone() for p in judge.parameters()]
    # Its turn: it moves by its own loss, and the model stays.
    states = LastStates(model, next_words=True).of(bench.examples.batch(rows)).detach()
    wanted = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    wanted.load_state_dict(judge.state_dict())
    by = torch.optim.Adam(wanted.parameters(), lr=1e-3)
    F.cross_entropy(wanted(states), authors).backward()
    by.step()
    loss, _ = method._loss(1, rows)
    for ours, theirs, old in zip(judge.parameters(), wanted.parameters(), before, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
        assert not torch.equal(ours, old)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), held, strict=True))
    # The model's turn: against the discriminator as it is now, which stays and gets no gradient.
    learnt = [p.detach().clone() for p in judge.parameters()]
    for parameter in judge.parameters():
        parameter.grad = None
    log_chances = torch.log_softmax(
        judge(LastStates(model, next_words=True).of(bench.examples.batch(rows))), 1
    )
    ce = TASK.losses(model, bench.examples.batch(rows)).mean()
    assert loss.item() == pytest.approx((ce - 2.0 * log_chances.mean()).item(), rel=1e-5)
    loss.backward()
    assert all(p.grad is None for p in judge.parameters())
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert all(torch.equal(p, old) for p, old in zip(judge.parameters(), learnt, strict=True))
    assert any(not torch.equal(p, old) for p, old in zip(model.parameters(), held, strict=True))


@pytest.mark.parametrize("given", [AdversarialSettings(privacy_weight=0, batches="mixed"),
                                   TripletSettings(privacy_weight=0, batches="mixed")])  # fmt: skip
@pytest.mark.parametrize("kind", ["lstm", "gpt2"])
def test_without_weight_it_is_plain_training(given: Any, kind: str) -> None:
    bench = Bench(kind)  # with dropout, where the family has it
    one, other = (bench.train(by, 4).state_dict() for by in (None, given))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_record_whose_loss_is_not_finite_is_left_out() -> None:
    bench = Bench()
    for by in (AdversarialSettings(), TripletSettings(batches="grouped")):
        model = bench.model()
        method = bench.method(model, by)
        losses = method._losses

        def broken(model: nn.Module, batch: Any, losses: Any = losses) -> Tensor:
            bad = batch["input_ids"][:, 1] == int(bench.examples.ids[2][1])
            return torch.where(bad, torch.nan, losses(model, batch))

        method._losses = broken
        gradient, seen = method.gradient(1)
        assert all(bool(torch.isfinite(g).all()) for g in gradient.values())
        loss, seen = method._loss(1, np.arange(6))
        assert seen.not_finite >= 1
        assert bool(torch.isfinite(loss))


# --- what is drawn --------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 12), st.integers(0, 99))
def test_a_grouped_batch_is_made_of_whole_groups(groups: list[int], size: int, seed: int) -> None:
    codes = np.array(groups)
    drawn = Grouped(codes, size).draw(np.random.default_rng(seed))
    assert len(drawn) == min(size, len(codes)) == len(set(drawn.tolist()))
    own = codes[drawn]
    changes = 1 + int((own[1:] != own[:-1]).sum())
    assert changes == len(set(own.tolist()))  # those of a group stand together
    for group in set(own[: -1 if len(own) else None].tolist()) - {own[-1]}:
        assert (own == group).sum() == (codes == group).sum()  # only the last may be cut


def test_groups_are_drawn_as_often_as_they_have_records() -> None:
    codes = np.array([0] * 8 + [1] * 2)
    rng = np.random.default_rng(0)
    first = [codes[Grouped(codes, 2).draw(rng)[0]] for _ in range(2000)]
    assert np.mean(first) == pytest.approx(0.2, abs=0.04)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=20).filter(lambda g: len(set(g)) > 1))
def test_partners_are_others_and_half_of_them_of_the_same_author(groups: list[int]) -> None:
    codes = np.array(groups)
    rows = np.arange(len(codes))
    rng = np.random.default_rng(0)
    drawn = np.stack([Partners(codes, rows).draw(rows, rng) for _ in range(200)])
    same = codes[drawn] == codes[None]
    alone = np.bincount(codes)[codes] == 1
    assert (drawn != rows).all()
    assert not same[:, alone].any()
    if (~alone).any():
        assert same[:, ~alone].mean() == pytest.approx(0.5, abs=0.1)
    for row in rows:  # and everybody may meet everybody else
        assert len(set(drawn[:, row].tolist())) > 0.8 * (len(rows) - 1)


# --- what it does ---------------------------------------------------------------------------------


def told_by_a_probe(model: nn.Module, bench: Bench) -> float:
    """How often a fresh classifier tells the author of held-out records from frozen states."""
    with torch.no_grad():
        batch = bench.examples.batch(np.arange(len(bench.examples)))
        states = LastStates(model.eval(), next_words=True).of(batch)
    order = torch.from_numpy(np.random.default_rng(1).permutation(len(states)))
    train, test = order.chunk(2)
    states = (states - states[train].mean(0)) / states[train].std(0).clamp(min=1e-6)
    authors = torch.from_numpy(bench.attribute.codes)
    torch.manual_seed(0)
    probe = nn.Sequential(nn.Linear(states.shape[1], 64), nn.ReLU(), nn.Linear(64, 8))
    by = torch.optim.Adam(probe.parameters(), lr=1e-2)
    for _ in range(100):
        by.zero_grad()
        F.cross_entropy(probe(states[train]), authors[train]).backward()
        by.step()
    return float((probe(states[test]).argmax(1) == authors[test]).float().mean())


def test_triplet_training_makes_authors_harder_to_tell() -> None:
    corpus = dialogs(authors=8, each=60)
    bench = Bench(corpus=corpus, embedding_size=16, hidden_size=16, layers=1)
    plain, hidden = (
        told_by_a_probe(bench.train(by, 300), bench)
        for by in (None, TripletSettings(privacy_weight=1.0))
    )
    assert plain > 0.6
    assert hidden < plain - 0.15


def test_adversarial_training_deceives_the_discriminator_it_meets() -> None:
    """Against one that has learnt and stands still: it ends near guessing, the model still reads.

    A fresh probe is another matter (docs/studies/tokens-and-regularizers.md): not asserted.
    """
    bench = Bench(corpus=dialogs(each=30), embedding_size=16, hidden_size=16, layers=1)
    model = bench.train(None, 150)
    method = bench.method(
        model, AdversarialSettings(privacy_weight=1.0, hidden_size=32, learning_rate=1e-2)
    )
    rows = np.arange(len(bench.examples))
    authors = torch.from_numpy(bench.attribute.codes)
    states = LastStates(model, next_words=True)

    def right() -> float:
        with torch.no_grad():
            scores = method.discriminator(states.of(bench.examples.batch(rows)))
        return float((scores.argmax(1) == authors).float().mean())

    for _ in range(100):
        method.learn(states.of(bench.examples.batch(rows)).detach(), authors)
    known = right()
    method.learn = lambda *_: None  # from here on only the model has turns
    by = OptimizerSettings(name="adam", learning_rate=5e-3)
    Loop(model, method, make_optimizer(model, by), by, 60, RandomSource(5)).run()
    assert known > 0.8
    assert right() < 0.6


# --- as runs --------------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path) -> dict[str, Any]:
    rows = [r.row() | {"department": f"d{n % 2}"} for n, r in enumerate(dialogs().records())]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "corpus": str(tmp_path / "c.jsonl"),
        "model": {"kind": "lstm", "config": {"embedding_size": 6, "hidden_size": 6}},
        "tokenizer": {"size": 400},
        "context": 24,
        "steps": 2,
        "batch": 6,
    }


@pytest.mark.parametrize("method", ["adversarial", "triplet"])
@pytest.mark.parametrize("attribute", ["user", "label", "department"])
def test_any_column_may_be_hidden_and_nothing_is_promised(
    tmp_path: Path, base: dict[str, Any], method: str, attribute: str
) -> None:
    run = Run(**base, method=method, **{method: {"attribute": attribute, "batches": "grouped"}})
    done = session.train(run, tmp_path / "run")
    certificate = done.certificate
    assert certificate.standing == "heuristic"
    assert certificate.epsilon == math.inf
    assert certificate.context["settings of the regularizer"]["attribute"] == attribute
    assert certificate.assumptions == ()
    assert "no epsilon" in (tmp_path / "run" / "certificate.md").read_text()
    keep_scores(tmp_path / "run", [Scores("linkage", {"accuracy": 0.3125, "chance": math.nan})])
    keep_scores(tmp_path / "run", [Scores("tab", {"canaries_reproduced": 0.25})])
    text = (tmp_path / "run" / "certificate.md").read_text()
    assert '"linkage": "accuracy 0.3125"' in text
    assert '"tab": "canaries reproduced 0.25"' in text
    assert [c.what for c in verify(tmp_path / "run") if not c.ok] == []
    assert f"method {method}" in (tmp_path / "run" / "README.md").read_text()


def test_the_discriminator_is_no_part_of_what_is_left(tmp_path: Path, base: dict[str, Any]) -> None:
    """A checkpoint on the way holds it; the finished folder does not."""
    from safetensors import safe_open

    def names(folder: Path, file: str) -> set[str]:
        with safe_open(folder / file, framework="pt") as held:
            return set(held.keys())

    class Stop(Exception):
        pass

    def stop(_: Any) -> None:
        raise Stop

    run = Run(**base, method="adversarial", seed=1)
    with pytest.raises(Stop):
        session.train(run, tmp_path / "run", on_progress=stop)
    place = read_place(tmp_path / "run")
    assert place is not None
    assert place.step == 1
    on_the_way = names(tmp_path / "run", "checkpoint.safetensors")
    assert any(name.startswith("aside/weights/") for name in on_the_way)
    assert any(name.startswith("aside/optimizer/") for name in on_the_way)
    session.resume(tmp_path / "run")
    left = {n for f in (tmp_path / "run").glob("*.safetensors") for n in names(f.parent, f.name)}
    assert not any("aside" in name for name in left)
    session.resume(
        tmp_path / "run"
    )  # finished: there is nothing to go on with, and nothing missing


def test_another_column_is_another_run(tmp_path: Path, base: dict[str, Any]) -> None:
    run = Run(**base, method="triplet", triplet={"attribute": "department"})
    session.train(run, tmp_path / "run")
    text = Path(base["corpus"]).read_text().replace('"d1"', '"d7"', 1)
    Path(base["corpus"]).write_text(text)
    with pytest.raises(PrivacyRefused, match="another plan, corpus or run"):
        session.resume(tmp_path / "run")


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("method", ["adversarial", "triplet"])
def test_a_transformer_is_regularized_too(
    tmp_path: Path, base: dict[str, Any], kind: str, method: str
) -> None:
    model = {"kind": kind, "config": {"layers": 1, "hidden_size": 8, "heads": 2}}
    task = "classification" if kind == "bert" else "next-word"
    lora = {"lora_rank": 2} if method == "triplet" else {}
    done = session.train(
        Run(**base | {"model": model | lora, "task": task}, method=method), tmp_path / "run"
    )
    assert done.metrics["parameters"]["moved"] > 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": None}, "needs steps"),
        ({"plan": {"protect": "users", "epsilon": 8, "user_rate": 0.1}}, "takes no plan"),
        ({"triplet": {"bound": 0}}, "triplet.bound"),
        ({"triplet": {"privacy_weight": -1}}, "privacy_weight"),
        ({"triplet": {"privacy_weigth": 1}}, "privacy_weight"),
        ({"triplet": {"batches": "both"}}, "triplet.batches"),
        ({"adversarial": {}}, "leave them out"),
        ({"method": "plain", "triplet": {}}, "leave them out"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    base: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Run(**base | {"method": "triplet"} | changes)


@pytest.mark.parametrize(
    ("rows", "attribute", "said"),
    [
        ([{"user": "a"}, {"user": "b"}], "town", "has no column 'town'"),
        ([{"user": "a"}, {"user": "a"}], "user", "the same user"),
        ([{}, {}], "user", "has no column 'user'"),
        ([{"user": "a"}, {}], "user", "1 record\\(s\\) have no user"),
        ([{"user": "a"}, {"user": "b"}], "text", "no values that records share"),
    ],
)
def test_an_attribute_that_is_none_is_refused(
    tmp_path: Path, base: dict[str, Any], rows: list[dict[str, str]], attribute: str, said: str
) -> None:
    corpus = Corpus.from_records(
        {"id": str(n), "text": "some words"} | row for n, row in enumerate(rows)
    )
    write(corpus, tmp_path / "few.jsonl")
    changes = {"corpus": str(tmp_path / "few.jsonl"), "method": "triplet"}
    run = Run(**base | changes, triplet={"attribute": attribute})
    with pytest.raises((DataError, UsageError), match=said):
        session.train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_known_corpus_has_only_the_columns_that_it_has() -> None:
    with pytest.raises(UsageError, match="give one of user, label"):
        attribute_of("town", dialogs(), "newsgroups20")
