"""Tasks: what becomes of a record, one loss of its own, and scores that can be checked by hand."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError
from tacit.training.models import networks
from tacit.training.models.tokens import byte_level_bpe, word_vocabulary
from tacit.training.tasks.encoding import Pieces, touching, windows
from tacit.training.tasks.examples import IGNORED, UNKNOWN_LABEL, Examples
from tacit.training.tasks.measuring import check_fit, token_losses
from tacit.training.tasks.tagging import Tagging
from tacit.training.tasks.tasks import USUAL, Classification, NextWord, Regression, Task

BPE = byte_level_bpe(["ann sent bob a letter about the old mill"] * 4, size=300)
LABELS = ("bad", "good")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches, however few examples there are."""
    whole = Examples.in_batches
    monkeypatch.setattr(Examples, "in_batches", lambda examples, _: whole(examples, 30))


def corpus(*rows: dict[str, Any]) -> Corpus:
    return Corpus.from_records([{"id": f"r{n}", **row} for n, row in enumerate(rows)])


TEXTS = corpus(
    {"user": "u", "text": "ann sent bob a letter about the old mill", "label": "good"},
    {"user": "v", "text": "a letter", "label": "bad"},
    {"user": "u", "text": "the", "label": "good"},
    {"user": "w", "text": "", "label": "bad"},
)
SENSITIVE = {"r0": [(0, 3), (9, 12)]}


def bert_like() -> PreTrainedTokenizerFast:
    """A word tokenizer that frames texts as BERT's does."""
    words = [
        "[PAD]",
        "[CLS]",
        "[SEP]",
        "[UNK]",
        "ann",
        "sent",
        "bob",
        "a",
        "letter",
        "about",
        "the",
        "old",
        "mill",
    ]
    made = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


KINDS: dict[str, dict[str, Any]] = {
    "lstm": {"kind": "lstm", "embedding_size": 8, "hidden_size": 12, "layers": 2},
    "last": {"kind": "lstm", "embedding_size": 8, "hidden_size": 8, "pooling": "last"},
    "gpt2": {"kind": "gpt2", "layers": 2, "hidden_size": 8, "heads": 2, "context": 64},
    "bert": {"kind": "bert", "layers": 2, "hidden_size": 8, "heads": 2, "context": 64},
    "llama": {"kind": "llama", "layers": 2, "hidden_size": 8, "heads": 2, "context": 64},
}
TAGGED = corpus(
    {
        "text": "ann sent bob a letter",
        "tokens": ["ann", "sent", "bob", "a", "letter"],
        "pos": list("NVNDN"),
    },
    {"text": "the mill", "tokens": ["the", "mill"], "pos": ["D", "N"]},
    {"text": "mill", "tokens": ["mill"], "pos": ["N"]},
)
CASES: list[tuple[str, Task, Corpus]] = [
    *((kind, NextWord(), TEXTS) for kind in ("lstm", "gpt2", "llama")),
    *((kind, Classification(LABELS), TEXTS) for kind in KINDS),
    *((kind, Tagging(("D", "N", "V")), TAGGED) for kind in ("lstm", "bert", "gpt2")),
]


def model_for(kind: str, task: Task) -> nn.Module:
    labels = getattr(task, "labels", None)
    return networks.scratch_model(KINDS[kind], task.name, tokenizer=BPE, labels=labels)


@pytest.mark.parametrize(("kind", "task", "texts"), CASES)
def test_a_records_loss_is_its_own(kind: str, task: Task, texts: Corpus) -> None:
    model = model_for(kind, task).eval().double()
    examples = task.encode(texts, BPE, context=64)
    together = task.losses(model, examples.batch(np.arange(len(examples))))
    assert together.shape == (len(examples),)
    for row in range(len(examples)):
        alone = task.losses(model, examples.batch(np.array([row])))
        assert alone.item() == pytest.approx(together[row].item(), abs=1e-9)
        again = task.losses(model, examples.batch(np.arange(len(examples))))
        weights = list(model.parameters())
        one = torch.autograd.grad(alone[0], weights)
        two = torch.autograd.grad(again[row], weights)
        assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(("kind", "task", "texts"), CASES)
def test_what_pads_a_batch_does_not_matter(kind: str, task: Task, texts: Corpus) -> None:
    if kind in ("gpt2", "llama") and task.name == "classification":
        pytest.skip("transformers finds the end of these models' texts by the padding token")
    model = model_for(kind, task).eval()
    examples = task.encode(texts, BPE, context=64)
    batch = examples.batch(np.arange(len(examples)))
    before = task.losses(model, batch)
    hole = batch["attention_mask"] == 0
    assert hole.any()
    batch["input_ids"] = batch["input_ids"].masked_fill(hole, 77)
    assert torch.allclose(before, task.losses(model, batch), atol=1e-6)


@pytest.mark.parametrize("task", [Classification(LABELS), Tagging(LABELS), NextWord()])
def test_an_empty_text_is_one_token(task: Task) -> None:
    rows = corpus({"text": "", "label": "good", "tokens": [], "pos": []})
    examples = task.encode(rows, BPE, sensitive={})
    assert examples.lengths.min() >= 1
    assert examples.sensitive is not None
    assert [len(m) for m in examples.sensitive] == [len(ids) for ids in examples.ids]


@pytest.mark.parametrize("budget", [1, 20, 8192])
def test_scores_do_not_depend_on_batches(budget: int) -> None:
    task = NextWord()
    model = model_for("lstm", task)
    examples = task.encode(TEXTS, BPE, sensitive=SENSITIVE)
    seen: list[int] = []
    found = task.score(model, examples, token_budget=budget, progress=seen.append)
    assert found["loss"] == pytest.approx(_loss_by_hand(model, examples), abs=1e-6)
    assert found["tokens"] == sum(len(ids) - 1 for ids in examples.ids)
    assert found["tokens_sensitive"] + found["tokens_plain"] == found["tokens"]
    assert sum(seen) == 4
    assert model.training


def _loss_by_hand(model: nn.Module, examples: Examples) -> float:
    model.eval()
    total, count = 0.0, 0
    for ids in examples.ids:
        given = torch.from_numpy(ids.astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=given[None]).logits[0]
        total += F.cross_entropy(logits[:-1], given[1:], reduction="sum").item()
        count += len(ids) - 1
    model.train()
    return total / count


def test_where_tokens_are_weighed_a_record_counts_by_its_tokens_in_training_alone() -> None:
    records, tokens = NextWord(), NextWord(weigh="tokens")
    model, examples = model_for("lstm", records), records.encode(TEXTS, BPE)
    batch = examples.batch(np.arange(4))
    mean = records.losses(model, batch)
    assert torch.equal(tokens.losses(model, batch), mean)
    assert torch.equal(records.learnt_losses(model, batch), mean)
    count = torch.tensor([len(ids) - 1.0 for ids in examples.ids])
    torch.testing.assert_close(tokens.learnt_losses(model, batch) * USUAL, mean * count)


class Uniform(nn.Module):
    """Every token is as likely as every other; the first is the guess."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.zeros(()))
        self.size = size

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        logits = self.level.expand(*input_ids.shape, self.size)
        return type("Output", (), {"logits": logits})


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary() -> None:
    task = NextWord()
    examples = task.encode(TEXTS, BPE, sensitive=SENSITIVE)
    found = task.score(Uniform(len(BPE)), examples)
    for name in ("perplexity", "perplexity_sensitive", "perplexity_plain"):
        assert found[name] == pytest.approx(len(BPE), rel=1e-5)
    assert task.losses(
        Uniform(7), {"labels": torch.tensor([[1, 2, 3]]), "input_ids": torch.ones(1, 3)}
    )[0].item() == pytest.approx(math.log(7))


def test_sensitive_tokens_are_those_that_touch_a_span() -> None:
    examples = NextWord().encode(TEXTS, BPE, sensitive=SENSITIVE)
    assert examples.sensitive is not None
    marked = BPE.decode(examples.ids[0][examples.sensitive[0]]).split()
    assert marked == ["ann", "bob"]
    assert not any(marks.any() for marks in examples.sensitive[1:])
    assert NextWord().encode(TEXTS, BPE).sensitive is None


@given(st.data())
def test_touching_is_sharing_a_character(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, 20), min_size=2, max_size=8)))
    places = np.array(list(itertools.pairwise(cuts)))
    pieces = Pieces(np.zeros(len(places), dtype=np.int32), places[:, 0], places[:, 1])
    start = data.draw(st.integers(0, 19))
    end = data.draw(st.integers(start + 1, 20))
    slow = [bool(set(range(a, b)) & set(range(start, end))) for a, b in places]
    assert touching(pieces, [(start, end)]).tolist() == slow


def test_a_long_record_is_cut_off() -> None:
    full = NextWord().encode(TEXTS, BPE)
    cut = NextWord().encode(TEXTS, BPE, context=5)
    assert len(cut) == len(TEXTS)
    assert max(cut.lengths) == 5
    assert cut.notes["records_cut"] == sum(full.lengths > 5)
    for whole, part in zip(full.ids, cut.ids, strict=True):
        assert whole[:5].tolist() == part.tolist()


@settings(max_examples=25)
@given(st.integers(2, 12))
def test_a_split_record_predicts_every_token_once(context: int) -> None:
    whole = NextWord().encode(TEXTS, BPE, sensitive=SENSITIVE)
    split = NextWord(long="split").encode(TEXTS, BPE, context=context, sensitive=SENSITIVE)
    assert max(split.lengths) <= context
    for row in range(len(TEXTS)):
        parts = np.flatnonzero(split.record == row)
        targets = [t for part in parts for t in split.ids[part][1:]]
        assert targets == whole.ids[row][1:].tolist()
        assert set(split.user[parts]) == {whole.user[row]}
    assert split.sensitive is not None
    assert whole.sensitive is not None
    assert sum(m.sum() for m in split.sensitive) == sum(m.sum() for m in whole.sensitive)


def test_windows_cover_everything() -> None:
    for length in range(0, 12):
        for shared in (0, 1):
            for size in range(shared + 1, 6):
                made = windows(length, size, "split", shared)
                assert {i for a, b in made for i in range(a, b)} == set(range(length))
                assert all(b - a <= size for a, b in made)
                assert all(one[1] - shared == two[0] for one, two in itertools.pairwise(made))


def test_a_record_is_framed_and_users_are_numbered() -> None:
    examples = NextWord().encode(TEXTS, BPE)
    assert all(ids[0] == BPE.bos_token_id and ids[-1] == BPE.eos_token_id for ids in examples.ids)
    assert examples.user.tolist() == [0, 1, 0, 2]
    assert examples.record.tolist() == [0, 1, 2, 3]
    open_end = NextWord(end=False).encode(TEXTS, BPE)
    assert [ids[:-1].tolist() for ids in examples.ids] == [ids.tolist() for ids in open_end.ids]
    nobody = NextWord().encode(corpus({"text": "a"}), BPE)
    assert nobody.user.tolist() == [-1]


def test_a_batch_is_padded_on_the_right() -> None:
    examples = NextWord().encode(TEXTS, BPE)
    batch = examples.batch(np.array([3, 0]))
    assert batch["input_ids"][0].tolist()[:2] == [BPE.bos_token_id, BPE.eos_token_id]
    assert batch["attention_mask"].sum(1).tolist() == [2, len(examples.ids[0])]
    assert (batch["labels"] == IGNORED).equal(batch["attention_mask"] == 0)
    assert examples.batch(np.array([], dtype=int))["input_ids"].shape == (0, 1)


def test_a_record_without_targets_has_loss_zero_and_no_gradient() -> None:
    task = NextWord(end=False)
    model = model_for("lstm", task)
    loss = task.losses(model, task.encode(TEXTS, BPE).batch(np.array([3])))
    assert loss.tolist() == [0.0]
    loss.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_one_bad_record_does_not_spoil_the_others() -> None:
    task = NextWord()
    model = model_for("lstm", task).eval()
    examples = task.encode(TEXTS, BPE)
    before = task.losses(model, examples.batch(np.arange(3)))
    only_in_0 = next(
        t for t in examples.ids[0] if t not in examples.ids[1] and t not in examples.ids[2]
    )
    with torch.no_grad():
        model.body.embedding.weight[int(only_in_0)] = math.nan
    after = task.losses(model, examples.batch(np.arange(3)))
    assert torch.isnan(after[0])
    assert torch.equal(after[1:], before[1:])


@pytest.mark.parametrize("task", [Classification(LABELS), Regression()])
def test_a_missing_label_in_training_names_the_record(task: Task) -> None:
    rows = corpus({"text": "secret words", "label": "1"}, {"text": "a"})
    if task.name == "classification":
        rows = corpus({"text": "secret words", "label": "good"}, {"text": "a"})
    with pytest.raises(DataError, match="record 2, has no label") as caught:
        task.encode(rows, BPE)
    assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match="label"):
        task.encode(corpus({"text": "a"}), BPE)
    examples = task.encode(rows, BPE, training=False)
    assert examples.notes["labels_missing"] == 1


def test_an_unknown_label_is_an_error_in_training_and_counted_in_a_test() -> None:
    task = Classification(LABELS)
    rows = corpus({"text": "a", "label": "good"}, {"text": "b", "label": "odd"}, {"text": "c"})
    with pytest.raises(DataError, match="record 2"):
        task.encode(rows, BPE)
    examples = task.encode(rows, BPE, training=False)
    assert isinstance(examples.labels, np.ndarray)
    assert examples.labels.tolist() == [1, UNKNOWN_LABEL, IGNORED]
    model = model_for("lstm", task)
    found = task.score(model, examples)
    assert (found["records"], found["labels_unknown"], found["labels_missing"]) == (2, 1, 1)
    assert found["error_rate"] in (0.5, 1.0)
    assert math.isfinite(found["loss"])
    assert task.losses(model, examples.batch(np.arange(3)))[1:].tolist() == [0.0, 0.0]


@pytest.mark.usefixtures("small_batches")
def test_classification_learns_and_scores() -> None:
    rows = [{"text": f"the old mill {n}", "label": "good"} for n in range(6)]
    rows += [{"text": f"bob sent {n}", "label": "bad"} for n in range(6)]
    task = Classification.of(corpus(*rows))
    assert task.labels == LABELS
    examples = task.encode(corpus(*rows), BPE)
    model = model_for("lstm", task)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(15):
        optimizer.zero_grad()
        task.losses(model, examples.batch(np.arange(12))).mean().backward()
        optimizer.step()
    assert task.score(model, examples)["error_rate"] == 0
    chances = task.predict(model, examples)
    assert chances.shape == (12, 2)
    assert (chances.argmax(1) == examples.labels).all()


PAIRS = corpus(
    {"text": "ann sent", "pair": "bob a letter about the old mill", "label": "5"},
    {"text": "the old mill", "pair": "the old mill", "label": "0"},
    {"text": "a", "pair": "b", "label": "2.5"},
)


def test_pairs_are_told_apart() -> None:
    spans = {"r0": [(0, 3)], "r1": [(4, 7)]}
    examples = Regression().encode(PAIRS, bert_like(), context=7, sensitive=spans)
    assert examples.types is not None
    assert examples.types[1].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert examples.notes["records_cut"] == 2
    assert examples.sensitive is not None
    # Only the first text has places that a span can mean.
    assert examples.sensitive[1].tolist() == [False, False, True, *[False] * 4]
    model = networks.scratch_model(KINDS["bert"], "regression", tokenizer=bert_like())
    batch = examples.batch(np.arange(3))
    loss = Regression().losses(model.eval(), batch)
    batch["token_type_ids"] = torch.zeros_like(batch["token_type_ids"])
    assert not torch.equal(loss, Regression().losses(model, batch))


def test_regression_is_scaled_and_scored() -> None:
    task = Regression()
    examples = task.encode(PAIRS, BPE)
    labels: Any = examples.labels
    assert isinstance(labels, np.ndarray)
    assert labels.tolist() == [1.0, 0.0, 0.5]

    class Right(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.tensor(0.1))

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
            rows = [int(n) for n in attention_mask.sum(1)]
            order = {len(ids): label for ids, label in zip(examples.ids, labels, strict=True)}
            given = torch.tensor([[float(order[n])] for n in rows]) + self.shift
            return type("Output", (), {"logits": given})

    model = Right()
    assert task.losses(model, examples.batch(np.arange(3))).tolist() == pytest.approx([0.01] * 3)
    found = task.score(model, examples)
    assert found["pearson"] == pytest.approx(1)
    assert found["spearman"] == pytest.approx(1)
    assert found["squared_error"] == pytest.approx(0.25)
    assert task.predict(model, examples) == pytest.approx([5.5, 0.5, 3.0])


@pytest.mark.parametrize("label", ["much", "nan", "inf"])
def test_a_label_that_is_no_number_names_the_record(label: str) -> None:
    with pytest.raises(DataError, match="record 1, has a label that is not a number"):
        Regression().encode(corpus({"text": "a", "label": label}), BPE)


def test_a_missing_number_makes_no_gradient() -> None:
    task = Regression()
    examples = task.encode(corpus({"text": "a"}, {"text": "b", "label": "1"}), BPE, training=False)
    model = model_for("lstm", task)
    losses = task.losses(model, examples.batch(np.arange(2)))
    assert losses[0].item() == 0
    losses[0].backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_tags_stand_at_the_last_token_of_a_word() -> None:
    rows = corpus({"text": "zebras sent", "tokens": ["zebras", "sent"], "pos": ["N", "V"]})
    examples = Tagging(("N", "V")).encode(rows, BPE)
    assert isinstance(examples.labels, list)
    at = np.flatnonzero(examples.labels[0] != IGNORED)
    assert examples.labels[0][at].tolist() == [0, 1]
    assert at[1] == len(examples.ids[0]) - 1
    ends = BPE(rows.column("text")[0].as_py(), return_offsets_mapping=True)["offset_mapping"]
    assert ends[at[0]][1] == len("zebras")


def test_tags_keep_clear_of_special_tokens_and_of_the_context() -> None:
    tokenizer = bert_like()
    task = Tagging.of(TAGGED)
    assert task.labels == ("D", "N", "V")
    cut = task.encode(TAGGED, tokenizer, context=5)
    assert cut.ids[0].tolist() == [1, 4, 5, 6, 2]
    assert isinstance(cut.labels, list)
    assert cut.labels[0].tolist() == [IGNORED, 1, 2, 1, IGNORED]
    assert cut.notes == {
        "records_cut": 1,
        "labels_unknown": 0,
        "labels_missing": 0,
        "words_lost": 2,
    }
    split = Tagging.of(TAGGED, long="split").encode(TAGGED, tokenizer, context=5)
    assert split.record.tolist() == [0, 0, 1, 2]
    assert split.notes["words_lost"] == 0
    assert isinstance(split.labels, list)
    assert split.labels[1].tolist() == [IGNORED, 0, 1, IGNORED]


def test_a_word_without_a_token_is_counted() -> None:
    rows = corpus({"text": "ann --", "tokens": ["ann", "--"], "pos": ["N", "P"]})
    tokenizer, _ = word_vocabulary(rows, min_count=1)
    examples = Tagging(("N", "P")).encode(rows, tokenizer)
    assert examples.notes["words_lost"] == 1


def test_tagging_learns_scores_and_tags_raw_text() -> None:
    task = Tagging.of(TAGGED)
    examples = task.encode(TAGGED, BPE, sensitive={"r0": [(0, 3)]})
    model = model_for("lstm", task)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(30):
        optimizer.zero_grad()
        task.losses(model, examples.batch(np.arange(3))).mean().backward()
        optimizer.step()
    found = task.score(model, examples)
    assert (found["accuracy"], found["words"], found["words_sensitive"]) == (1.0, 8, 1)
    assert task.tag(model, BPE, "ann sent bob") == [("ann", "N"), ("sent", "V"), ("bob", "N")]
    assert task.tag(model, BPE, "ann sent", context=1)[-1] == ("sent", None)
    wrong = corpus({"text": "the", "tokens": ["the"], "pos": ["X"]})
    scored = task.score(model, task.encode(wrong, BPE, training=False))
    assert (scored["accuracy"], scored["labels_unknown"]) == (0.0, 1)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "a b", "tokens": ["a", "b"], "pos": ["N", "?"]}, "record 1, has at token 2"),
        ({"text": "a b", "tokens": ["a", "c"], "pos": ["N", "N"]}, "record 1, .* token 2"),
        ({"text": "a b", "tokens": ["a", "b"]}, "no column 'pos'"),
        ({"text": "a b"}, "no column 'tokens'"),
        ({"text": "a b", "tokens": None, "pos": None}, "record 1, has no pos"),
    ],
)
def test_bad_tags_name_the_record(row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Tagging(("N", "V")).encode(corpus(row), BPE)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NextWord().encode(TEXTS, BPE, context=1), "context=1"),
        (lambda: NextWord(long="fold").encode(TEXTS, BPE), "long=fold"),  # type: ignore[arg-type]
        (lambda: Classification(LABELS).encode(TEXTS, bert_like(), context=2), "context=2"),
        (lambda: Classification(("one",)), "labels: 1 given"),
        (lambda: Classification(("a", "a")), "twice"),
        (lambda: Regression(low=1, high=1), "low=1"),
        (lambda: Tagging(("a", "b"), column="label"), "column=label"),
    ],
)
def test_bad_settings_are_refused(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


def test_examples_must_fit_the_model() -> None:
    task = NextWord()
    examples = task.encode(TEXTS, BPE)
    check_fit(model_for("gpt2", task), examples)
    small = networks.scratch_model(KINDS["lstm"] | {"vocab_size": 10}, "next-word")
    with pytest.raises(DataError, match="the model knows 10"):
        check_fit(small, examples)
    short = networks.scratch_model(KINDS["gpt2"] | {"context": 4}, "next-word", tokenizer=BPE)
    with pytest.raises(UsageError, match="context=4"):
        check_fit(short, examples)
    nothing = Examples([], np.zeros(0, np.int32), np.zeros(0, np.int32), 0)
    with pytest.raises(DataError, match="nothing to score"):
        task.score(short, nothing)


@pytest.mark.usefixtures("small_batches")
def test_record_losses_come_in_the_order_of_the_examples() -> None:
    task = NextWord()
    model = model_for("gpt2", task)
    examples = task.encode(TEXTS, BPE)
    found = task.record_losses(model, examples)
    model.eval()
    for row, loss in enumerate(found):
        alone = task.losses(model, examples.batch(np.array([row])))
        assert loss == pytest.approx(alone.item(), abs=1e-5)


@pytest.mark.parametrize("ignored", [0, 3, 30])
def test_token_losses_and_their_gradients_are_those_of_cross_entropy(ignored: int) -> None:
    """Also where most places are no target, and where logits would overflow an exponential."""
    torch.manual_seed(ignored)
    logits = (torch.randn(5, 7, 11, dtype=torch.float64) * 400).requires_grad_()
    targets = torch.randint(0, 11, (5, 7))
    targets.view(-1)[:ignored] = IGNORED
    weight = torch.rand(5, 7, dtype=torch.float64)
    ours = token_losses(logits, targets)
    (gradient,) = torch.autograd.grad((ours * weight).sum(), logits)
    theirs = F.cross_entropy(
        logits.view(-1, 11), targets.view(-1), ignore_index=IGNORED, reduction="none"
    ).view(5, 7)
    (right,) = torch.autograd.grad((theirs * weight).sum(), logits)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, right, rtol=1e-12, atol=1e-12)
