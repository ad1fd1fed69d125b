"""Selective training: segments, states, what a neighbour moves, and every release in the ledger."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.steps import make_step
from tacit.errors import DataError, UsageError
from tacit.planning.plan import Plan
from tacit.privacy.events import SelectivePart
from tacit.privacy.ledger import Ledger, read_ledger
from tacit.training.data.training_data import TrainingData
from tacit.training.dp.gradients import BoundedSum
from tacit.training.dp.noise import release
from tacit.training.dp.random_source import RandomSource
from tacit.training.methods import selective
from tacit.training.methods.segments import positions, rounds_of
from tacit.training.methods.selective import SelectiveSettings
from tacit.training.methods.states import clipped_rows, states_after
from tacit.training.models.networks import scratch_model
from tacit.training.models.recurrent import LSTMConfig, LSTMForCausalLM
from tacit.training.settings import Run
from tacit.training.tasks.examples import Examples
from tacit.training.tasks.tasks import NextWord

WORDS = 23
MARKS = st.lists(st.booleans(), max_size=24).map(lambda m: np.array(m, dtype=bool))


# --- segments -------------------------------------------------------------------------------------


@given(marks=MARKS, most=st.integers(1, 4))
def test_segments_take_turns_and_hold_every_position_once(marks: np.ndarray, most: int) -> None:
    rounds = rounds_of(marks, most)
    assert rounds[:, 1:].size == 0 or (np.diff(rounds, axis=1) >= 0).all()
    flat = [place for a, _, c in rounds.tolist() for place in range(a, c)]
    assert flat == list(range(max(0, len(marks) - 1)))
    sensitive = np.zeros(max(0, len(marks) - 1), dtype=bool)
    for _, b, c in rounds.tolist():
        sensitive[b:c] = True
    wanted = positions(marks)
    assert (sensitive >= wanted).all()
    assert int((rounds[:, 1] < rounds[:, 2]).sum()) <= most
    if not wanted.any() or len(rounds_of(marks, 99)) == len(rounds):
        assert (sensitive == wanted).all()


def test_the_nearest_segments_become_one() -> None:
    marks = np.zeros(20, dtype=bool)
    marks[[3, 7, 15]] = True
    assert rounds_of(marks, 3).tolist() == [[0, 2, 4], [4, 6, 8], [8, 14, 16], [16, 19, 19]]
    assert rounds_of(marks, 2).tolist() == [[0, 2, 8], [8, 14, 16], [16, 19, 19]]
    assert rounds_of(marks, 1).tolist() == [[0, 2, 16], [16, 19, 19]]


# --- a small corpus ---------------------------------------------------------------------------


def small_model(layers: int = 1, **changes: Any) -> LSTMForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "embedding_size": 6, "hidden_size": 6, "layers": layers}
    model = LSTMForCausalLM(LSTMConfig(**sizes | changes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)  # so that what stood before is felt
    return model.train()


def corpus_of(records: list[tuple[list[int], list[int]]]) -> TrainingData:
    ids = [np.array(tokens, dtype=np.int32) for tokens, _ in records]
    marks = [np.isin(np.arange(len(tokens)), at) for tokens, at in records]
    each = np.arange(len(records), dtype=np.int32)
    examples = Examples(ids=ids, user=each, record=each, pad=0, labels=None, sensitive=marks)
    rows = np.arange(len(records))
    return TrainingData(examples, rows, tuple(rows.reshape(-1, 1)), None, None)


RECORDS = [
    ([1, 5, 9, 4, 7, 3, 8, 2], [2, 5]),
    ([1, 6, 6, 2], []),
    ([1, 9, 9, 3, 4, 5, 10, 11, 12, 2], [1, 2]),
    ([1, 4, 8, 2], [3]),
]


def plan_of(**changes: Any) -> Plan:
    fields = {
        "protect": "tokens", "mechanism": "selective", "epsilon": 1e9, "steps": 3,
        "record_rate": 1.0, "noise_multiplier": 0.0, "clip_norm": 0.4,
    }  # fmt: skip
    return Plan(**fields | changes)


Watch = Callable[[BoundedSum, SelectivePart], None]


def step_of(
    model: Any, training_data: TrainingData, plan: Plan, ledger: Ledger, **settings: Any
) -> Any:
    """The steps of selective training."""
    return make_step(
        "selective", model, None, training_data, plan, ledger=ledger, token_budget=640,
        options=SelectiveSettings(**settings),
    )  # fmt: skip


def updates(
    training_data: TrainingData,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    plan: Plan,
    *,
    model: LSTMForCausalLM | None = None,
    step: int = 1,
    rate: float = 0.0,
    seen: list[tuple[SelectivePart, BoundedSum]] | None = None,
    state_clip: float | None = None,
    plain_norm: float | None = None,
) -> Iterator[dict[str, Tensor]]:
    """The updates of a step; with a rate they are carried out, as in the loop."""
    model = model or small_model()
    real = release

    def meter(total: BoundedSum, event: SelectivePart, *rest: Any, **named: Any) -> Any:
        if seen is not None:
            seen.append((event, total))
        return real(total, event, *rest, **named)

    monkeypatch.setattr(selective, "release", meter)
    with Ledger(folder / "ledger.jsonl", {}) as ledger:
        method = step_of(
            model, training_data, plan, ledger, state_clip=state_clip, plain_norm=plain_norm
        )
        for gradient, _ in method.gradients(step):
            yield {name: tensor.clone() for name, tensor in gradient.items()}
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name in gradient:
                        parameter.sub_(gradient[name], alpha=rate)
    monkeypatch.setattr(selective, "release", real)


def flat(gradient: dict[str, Tensor]) -> np.ndarray:
    return torch.cat([t.reshape(-1) for _, t in sorted(gradient.items())]).double().numpy()


# --- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 3])
def test_a_state_is_that_after_the_last_token_whatever_is_padded(layers: int) -> None:
    model = small_model(layers, last_hidden_size=5 if layers > 1 else None)
    lengths = torch.tensor([3, 7, 1, 5])
    ids = torch.randint(0, WORDS, (4, 7), generator=torch.Generator().manual_seed(1))
    before = tuple(
        (torch.randn(1, 4, size), torch.randn(1, 4, size)) for size in model.config.sizes
    )
    after = states_after(model.body, ids, lengths, before)
    for row, length in enumerate(lengths.tolist()):
        own = tuple((h[:, row : row + 1], c[:, row : row + 1]) for h, c in before)
        _, truth = model.body(ids[row : row + 1, :length], own)
        for (h, c), (right_h, right_c) in zip(after, truth, strict=True):
            assert torch.allclose(h[0, row], right_h[0, 0], atol=1e-6)
            assert torch.allclose(c[0, row], right_c[0, 0], atol=1e-6)


@settings(max_examples=30)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([-1e30, -2.0, 0.0, 1e-20, 0.3, 5.0, float("nan"), float("inf")]),
                 min_size=3, max_size=3),
        min_size=1, max_size=4),
)  # fmt: skip
def test_rows_are_bounded_whatever_they_are(rows: list[list[float]]) -> None:
    bounded = clipped_rows(torch.tensor(rows), 0.5)
    norms = bounded.tensors["state"].double().norm(dim=1)
    assert bool((norms <= 0.5 * (1 + 1e-6)).all())


def test_without_noise_segments_read_what_a_whole_record_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states between segments are those of one pass, where nothing is clipped."""
    seen: list[tuple[SelectivePart, BoundedSum]] = []
    model = small_model()
    list(updates(corpus_of(RECORDS), tmp_path, monkeypatch, plan_of(), seen=seen, model=model,
                 state_clip=1e9))  # fmt: skip
    tokens = torch.tensor([RECORDS[0][0]])
    states = [total.tensors["state"] for event, total in seen if event.state]
    # Record 0: sensitive tokens 2 and 5, so its segments end after tokens 2 and 5.
    _, ((h, c),) = model.body(tokens[:, :3])
    assert torch.allclose(states[0][0], h[0, 0], atol=1e-6)
    assert torch.allclose(states[1][0], c[0, 0], atol=1e-6)
    _, ((h, c),) = model.body(tokens[:, :6])
    assert torch.allclose(states[2][0], h[0, 0], atol=1e-6)
    assert torch.allclose(states[3][0], c[0, 0], atol=1e-6)


# --- gradients ------------------------------------------------------------------------------------


def test_records_without_marks_get_the_plain_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training_data = corpus_of([*RECORDS[1:2], ([1, 3, 3, 3, 2], []), ([3, 4], [1])])
    model = small_model()
    first = next(updates(training_data, tmp_path, monkeypatch, plan_of(), model=model))
    batch = training_data.examples.batch(np.array([0, 1]))
    mean = NextWord().losses(model, batch).mean()
    truth = torch.autograd.grad(mean, list(model.parameters()))
    for (name, _), right in zip(model.named_parameters(), truth, strict=True):
        assert torch.allclose(first[name], right, atol=1e-6)


def test_a_norm_scales_plain_updates_down_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[np.ndarray]] = []
    for norm in (None, 0.1, 1e9):
        folder = tmp_path / str(norm)
        folder.mkdir()
        found = updates(corpus_of(RECORDS), folder, monkeypatch, plan_of(), plain_norm=norm)
        made.append([flat(gradient) for gradient in found])
    as_it_is, scaled, wide = made
    for number, (one, other, same) in enumerate(zip(as_it_is, scaled, wide, strict=True)):
        assert np.array_equal(one, same)
        if number % 2:  # the private update of a round comes after its plain one
            assert np.array_equal(one, other)
        else:
            assert np.linalg.norm(one) > 0.1
            assert np.allclose(other, one * 0.1 / np.linalg.norm(one), rtol=1e-4, atol=1e-9)


def replaced(records: list[tuple[list[int], list[int]]], at: int, by: list[int]) -> Any:
    """The same corpus with other sensitive tokens in one record."""
    tokens, marks = records[at]
    fresh = list(tokens)
    for place, word in zip(marks, by, strict=False):
        fresh[place] = word
    return [*records[:at], (fresh, marks), *records[at + 1 :]]


@pytest.mark.parametrize("plain_norm", [None, 0.001])
def test_a_plain_gradient_knows_nothing_of_sensitive_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_norm: float | None
) -> None:
    """Back-propagation stops at borders: with the passed state held fixed, nothing gets through.

    Nor by how far a plain update is scaled down.
    """
    rounds = {}
    for clip in (1e-60, 1e9):  # passed on: nothing (it rounds to zero), or the state
        rounds[clip] = [
            list(
                updates(
                    corpus_of(records),
                    tmp_path,
                    monkeypatch,
                    plan_of(),
                    state_clip=clip,
                    plain_norm=plain_norm,
                )
            )
            for records in (RECORDS, replaced(RECORDS, 0, [17, 18]))
        ]
    for one, other in zip(*rounds[1e-60], strict=True):
        assert one.keys() == other.keys()
    # Plain, private, plain, private, plain: in this corpus there are three rounds.
    assert [len(many) for many in rounds[1e-60]] == [5, 5]
    for at in (0, 2, 4):
        assert (flat(rounds[1e-60][0][at]) == flat(rounds[1e-60][1][at])).all()
    for at in (1, 3):
        assert np.abs(flat(rounds[1e-60][0][at]) - flat(rounds[1e-60][1][at])).max() > 1e-4
    # The other side of the coin: a state that is passed on as it is carries the secret.
    assert np.abs(flat(rounds[1e9][0][2]) - flat(rounds[1e9][1][2])).max() > 1e-6


@settings(max_examples=15)
@given(
    record=st.sampled_from([0, 2, 3]),
    by=st.lists(st.integers(0, WORDS - 1), min_size=2, max_size=2),
    clip=st.sampled_from([1e-3, 0.4, 50.0]),
)
def test_a_neighbour_moves_its_releases_by_twice_the_norm_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, record: int, by: list[int], clip: float
) -> None:
    plan = plan_of(clip_norm=clip)
    pair = []
    with pytest.MonkeyPatch.context() as patched:
        for records in (RECORDS, replaced(RECORDS, record, by)):
            seen: list[tuple[SelectivePart, BoundedSum]] = []
            folder = tmp_path_factory.mktemp("run")
            list(updates(corpus_of(records), folder, patched, plan, seen=seen, state_clip=clip / 2))
            pair.append(seen)
    assert [event for event, _ in pair[0]] == [event for event, _ in pair[1]]
    for (event, one), (_, other) in zip(*pair, strict=True):
        assert one.clip_norm == other.clip_norm == (clip / 2 if event.state else clip)
        gap = flat(one.tensors) - flat(other.tensors)
        assert np.linalg.norm(gap) <= 2 * one.clip_norm * (1 + 1e-5)
        if event.state:
            rows = np.abs(gap.reshape(one.units, -1)).max(1)
            assert (rows > 0).sum() <= 1  # one record has one row


# --- releases -------------------------------------------------------------------------------------


def test_every_release_has_an_entry_of_its_own_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[SelectivePart, BoundedSum]] = []
    plan = plan_of(noise_multiplier=1.0)
    list(updates(corpus_of(RECORDS), tmp_path, monkeypatch, plan, seen=seen, rate=0.1))
    held = [entry.event for entry in read_ledger(tmp_path / "ledger.jsonl").entries]
    assert held == [event for event, _ in seen]
    assert [(e.segment, e.state) for e in held if isinstance(e, SelectivePart)] == [
        (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2),
    ]  # fmt: skip
    # Records that end with their sensitive segment pass nothing on.
    assert [total.units for _, total in seen] == [3, 2, 2, 1, 1, 1]


def test_no_more_records_are_clipped_than_were_drawn(tmp_path: Path) -> None:
    plan = plan_of(clip_norm=1e-9)
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        method = step_of(small_model(), corpus_of(RECORDS), plan, ledger)
        seen = [told for _, told in method.gradients(1)]
    assert [(told.units, told.clipped) for told in seen][-1] == (4, 3)


def test_a_step_to_which_nobody_comes_is_charged_and_noisy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = corpus_of(RECORDS * 3)
    plan = plan_of(record_rate=1 / 12, noise_multiplier=2.0)
    empty = next(
        step for step in range(1, 200)
        if not (RandomSource(1).stream("coins", step).random(12) < 1 / 12).any()
    )  # fmt: skip
    (only,) = updates(many, tmp_path, monkeypatch, plan, step=empty)
    assert len(read_ledger(tmp_path / "ledger.jsonl").entries) == 1
    assert flat(only).std() == pytest.approx(2.0 * 0.4 / 1.0, rel=0.1)


def test_noise_is_what_the_event_says_and_never_used_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients by their norm, states by theirs, each release with noise of its own."""
    many = corpus_of(RECORDS * 40)
    fields = {"noise_multiplier": 3.0, "clip_norm": 1e-9}
    got: list[tuple[SelectivePart, np.ndarray]] = []
    real = release

    def meter(total: BoundedSum, event: SelectivePart, *rest: Any, **named: Any) -> Any:
        out = real(total, event, *rest, **named)
        got.append((event, flat({name: out[name] - total.tensors[name] for name in out})))
        return out

    monkeypatch.setattr(selective, "release", meter)
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        method = step_of(small_model(), many, plan_of(**fields), ledger, state_clip=1e-3)
        list(method.gradients(1))
    for event, noise in got:
        std = 3.0 * (1e-3 if event.state else 1e-9)
        assert noise.std() == pytest.approx(std, rel=0.2)
    states = [noise for event, noise in got if event.state == 1] + [got[2][1]]
    shortest = min(map(len, states))
    for one in range(len(states)):
        for other in range(one):
            match = np.corrcoef(states[one][:shortest], states[other][:shortest])[0, 1]
            assert abs(match) < 0.3


@pytest.mark.parametrize("layers", [1, 2])
def test_what_plain_segments_begin_with_is_what_was_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    """Hidden and cell states of every layer: the noisy ones are passed on, and no others."""
    released: list[Tensor] = []
    real = release

    def meter(total: BoundedSum, event: SelectivePart, *rest: Any, **named: Any) -> Any:
        out = real(total, event, *rest, **named)
        if event.state:
            released.append(out["state"].clone())
        return out

    monkeypatch.setattr(selective, "release", meter)
    begun: list[list[Tensor]] = []
    plan = plan_of(noise_multiplier=1.0, states=2 * layers)
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        method = step_of(
            small_model(layers), corpus_of(RECORDS[:1] * 3), plan, ledger, state_clip=0.5
        )
        plain = method._plain

        def listening(cut: Any, tally: Any) -> Any:
            begun.append([state[0].clone() for layer in cut.state for state in layer])
            return plain(cut, tally)

        monkeypatch.setattr(method, "_plain", listening)
        list(method.gradients(1))
    # Three records alike: two sensitive segments, each followed by a plain one.
    assert len(begun) == 3
    assert not any(bool(state.any()) for state in begun[0])
    passed = [state for states in begun[1:] for state in states]
    assert len(passed) == len(released) == 4 * layers
    for one, other in zip(passed, released, strict=True):
        assert torch.equal(one, other)


def test_what_cannot_be_trained_selectively_is_refused(tmp_path: Path) -> None:
    class Tokens:
        bos_token_id = eos_token_id = pad_token_id = 0

        def __len__(self) -> int:
            return WORDS

    other = scratch_model(
        {"kind": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "context": 16}, "next-word",
        tokenizer=Tokens(), labels=None, seed=0,  # type: ignore[arg-type]
    )  # fmt: skip
    cases = [
        (other, corpus_of(RECORDS), plan_of(), UsageError, "for LSTMs"),
        (small_model(2), corpus_of(RECORDS), plan_of(), UsageError, "plan.states=4"),
        (small_model(), corpus_of([([1, 2, 3], [])]), plan_of(), DataError, "nothing to protect"),
        (small_model(), corpus_of(RECORDS), plan_of(record_rate=0.01), UsageError, "nobody"),
    ]
    with Ledger(tmp_path / "ledger.jsonl", {}) as ledger:
        for model, training_data, plan, kind, says in cases:
            with pytest.raises(kind, match=says):
                step_of(model, training_data, plan, ledger)
    assert not read_ledger(tmp_path / "ledger.jsonl").entries


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"policy": None}, "needs a policy"),
        ({"task": "classification"}, "serves the tasks"),
        ({"model": {"kind": "gpt2"}}, "model.kind=gpt2"),
        ({"plan": {"protect": "users", "user_rate": 0.1, "epsilon": 1, "steps": 2}}, "selective"),
        ({"method": "dp-sgd"}, "does not carry out"),
        ({"selective": {"state_clip": 0}}, "state_clip"),
        ({"method": "plain", "plan": {}, "steps": 2, "selective": {}}, "leave them out"),
    ],
)
def test_settings_that_cannot_be(fields: dict[str, Any], says: str) -> None:
    plan = {"protect": "tokens", "mechanism": "selective", "epsilon": 8, "steps": 2,
            "record_rate": 0.1}  # fmt: skip
    good = {"corpus": "c.jsonl", "method": "selective", "policy": "digits", "plan": plan}
    with pytest.raises(UsageError, match=says):
        Run(**good | fields)
    assert Run(**good | {"plan": {"epsilon": 8, "steps": 2, "record_rate": 0.1}}).made_plan() == (
        Run(**good).made_plan()
    )
