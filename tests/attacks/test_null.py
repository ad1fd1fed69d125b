"""Every attack on what it cannot know: its figures are those of guessing, and it says so.

Scores that tell nothing may differ, tie, be constant, be few, or be no numbers at all. On average
an attack gets what guessing gets; its interval holds that as often as it says.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from transformers import (  # type: ignore[attr-defined]
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
)

from support.sentences import sentences
from tacit.attacks import ATTACKS
from tacit.attacks.attack import Scores
from tacit.attacks.canaries import Planted
from tacit.attacks.exposure import (
    _drawn_bits,
    _likelier,
    _rank_bits,
    chance_bits,
    mean_interval,
)
from tacit.attacks.extraction import Extraction
from tacit.attacks.linkage import _verdict as authors_verdict
from tacit.attacks.rates import auc, rates_of
from tacit.attacks.secrets import best_and_worst, matched_names
from tacit.attacks.target import Masked, Target, open_masked
from tacit.attacks.verdicts import Counted, against_controls, against_ranks
from tacit.corpus import Corpus
from tacit.detection.mentions import Mention
from tacit.sanitization import Recipe, Sanitizer, open_embeddings

Rng = np.random.Generator
Values = NDArray[np.float64]
Law = Callable[[Rng, int], Values]


def some(rng: Rng, count: int, value: float) -> Values:
    """Normal scores of which some are replaced."""
    return np.where(rng.random(count) < 0.3, value, rng.normal(size=count))


LAWS: dict[str, Law] = {
    "continuous": lambda rng, count: rng.normal(size=count),
    "ties": lambda rng, count: rng.integers(0, 3, count).astype(float),
    "constant": lambda rng, count: np.full(count, -4.25),
    "nearly constant": lambda rng, count: -4.25 + 1e-13 * rng.normal(size=count),
    "no numbers": lambda rng, count: some(rng, count, math.nan),
    "nothing but no numbers": lambda rng, count: np.full(count, math.nan),
    "impossible": lambda rng, count: some(rng, count, -math.inf),
    "certain": lambda rng, count: some(rng, count, math.inf),
}
SIZES = [(1, 1), (2, 2), (3, 3), (1, 30), (20, 20), (30, 120)]
GUESSING = {
    "auc": 0.5, "accuracy": 0.5, "tpr_at_0.01": 0.01, "tpr_at_0.001": 0.001, "two_passes": 0.5,
}  # fmt: skip
DRAWS = 150


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_rates_of_what_tells_nothing_are_those_of_guessing(
    law: str, sizes: tuple[int, int]
) -> None:
    rng = np.random.default_rng(7)
    values: dict[str, list[float]] = {name: [] for name in GUESSING}
    held = dict.fromkeys(GUESSING, 0)
    for _ in range(DRAWS):
        members, others = (LAWS[law](rng, size) for size in sizes)
        found, _ = rates_of(members, others)
        figures, intervals = found.figures, found.intervals
        figures["two_passes"], intervals["two_passes"], _ = best_and_worst(members, others, 10)
        for name, guessing in GUESSING.items():
            low, high = intervals[name]
            assert 0 <= low <= figures[name] <= high <= 1, name
            held[name] += low <= guessing <= high
            values[name].append(figures[name])
    for name, guessing in GUESSING.items():
        error = np.std(values[name]) / math.sqrt(DRAWS)
        assert abs(np.mean(values[name]) - guessing) <= 4 * error + 1e-9, name
        assert held[name] >= 0.92 * DRAWS, name


def test_equal_secrets_are_right_half_of_the_time() -> None:
    """Not 300 of 300 because the real ones stood first."""
    assert best_and_worst(np.zeros(300), np.zeros(300), 300)[0] == 0.5
    assert best_and_worst(np.ones(300), np.zeros(300), 300)[0] == 1.0
    assert best_and_worst(np.zeros(300), np.ones(300), 300)[0] == 0.0


@pytest.mark.parametrize("size", [1, 2, 3, 100, 4000])
@pytest.mark.parametrize("law", LAWS)
def test_secrets_that_nobody_planted_have_the_exposure_of_chance(law: str, size: int) -> None:
    """Any one may have been drawn, so the mean over all of them is what a control has."""
    everything = LAWS[law](np.random.default_rng(size), size)
    likelier, equal = _likelier(everything, everything, np.ones(size, dtype=int))
    bits = _rank_bits(likelier, equal, size)
    assert np.isfinite(bits).all()
    assert bits.mean() == pytest.approx(chance_bits(size), abs=1e-3)
    assert (bits <= math.log2(size) + 1e-9).all()


@pytest.mark.parametrize("drawn", [0, 1, 2, 3, 200, 4000])
@pytest.mark.parametrize("law", LAWS)
def test_so_they_have_among_secrets_that_were_drawn(law: str, drawn: int) -> None:
    rng = np.random.default_rng(drawn)
    repeats = 200 if drawn < 1000 else 1
    own = 1 if drawn < 1000 else 600
    found = []
    for _ in range(repeats):
        bits, _ = _drawn_bits(LAWS[law](rng, own), LAWS[law](rng, drawn), 20.0)
        assert np.isfinite(bits).all()
        assert ((bits >= 0) & (bits <= 20)).all()
        found += bits.tolist()
    error = float(np.std(found)) / math.sqrt(len(found))
    assert np.mean(found) == pytest.approx(chance_bits(drawn + 1), abs=4 * error + 1e-9)


@pytest.mark.parametrize(
    ("others", "fits"),
    [
        (np.random.default_rng(0).normal(-30, 4, 4000), True),
        (np.full(4000, -30.0), False),
        (-30 + 1e-6 * np.random.default_rng(0).normal(size=4000), False),
        (np.random.default_rng(0).normal(-30, 4, 500), False),
        (np.random.default_rng(0).integers(0, 5, 4000).astype(float), False),
        (np.where(np.arange(4000) % 2, -30.0, -9.0) + 1e-2 * np.random.default_rng(0).random(4000),
         False),
        (np.append(np.random.default_rng(0).normal(-30, 4, 3999), math.nan), False),
    ],
    ids=["normal", "constant", "rounding", "few", "few values", "two heaps", "no number"],
)  # fmt: skip
def test_exposure_is_fitted_where_a_distribution_fits_and_else_a_rank(
    others: Values, fits: bool
) -> None:
    ordinary = float(np.nanmedian(others))
    likeliest = float(np.nanmax(others))
    (above, middle), off = _drawn_bits(np.array([likeliest + 25, ordinary]), others, 33.0)
    assert (off is not None) == fits
    assert middle < 2.5
    if fits:
        assert 15 < above <= 33  # never more than there are secrets, and never infinite
    else:
        assert above == pytest.approx(math.log2(len(others) + 1))


@pytest.mark.parametrize("count", [1, 2, 3, 10, 30])
def test_intervals_of_exposure_hold_chance_as_often_as_they_say(count: int) -> None:
    rng = np.random.default_rng(count)
    ranks = rng.integers(1, 10**6 + 1, size=(400, count))
    bits = np.log2(10**6) - np.log2(ranks)
    held = shown = 0
    for row in bits.tolist():
        low, high = mean_interval(row, 10**6)
        assert 0 <= low <= np.mean(row) <= high <= math.log2(10**6)
        held += low <= chance_bits(10**6) <= high
        shown += against_ranks([row], [], chance_bits(10**6)).leak == "shown"
    assert held >= 0.93 * 400
    assert shown <= 0.045 * 400
    assert against_ranks([[18.0] * count], [], 1.44).leak == "shown"


def test_what_controls_do_as_well_is_no_leak() -> None:
    alike = against_controls("canaries", [Counted(18, 30)], Counted(12, 20))
    assert alike.leak == "not shown"
    assert "12 of 20 controls that were never seen" in alike.words
    assert against_controls("canaries", [Counted(18, 30)], Counted(0, 20)).leak == "shown"
    assert against_controls("canaries", [Counted(0, 30)], Counted(0, 20)).leak == "not shown"
    assert against_controls("canaries", [Counted(1, 1)], Counted(0, 2)).leak == "cannot tell"
    assert against_controls("canaries", [Counted(18, 30)], Counted(0, 0)).leak == "cannot tell"
    high = [17.0] * 10
    assert against_ranks([high], high, 1.44).leak == "not shown"
    assert "controls, never planted" in against_ranks([high], high, 1.44).words
    assert against_ranks([high], [1.4] * 10, 1.44).leak == "shown"
    assert against_ranks([], [], 1.44).leak == "cannot tell"


def test_a_leak_is_rarely_seen_where_there_is_none() -> None:
    rng = np.random.default_rng(0)
    pairs = zip(rng.binomial(30, 0.4, 400), rng.binomial(20, 0.4, 400), strict=True)
    shown = [
        against_controls("canaries", [Counted(int(a), 30)], Counted(int(b), 20)).leak == "shown"
        for a, b in pairs
    ]
    assert np.mean(shown) < 0.05


# --- every registered attack, on models that never saw the text ---------------------------------


def random_weights(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(11)
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def same_weights(value: float) -> Callable[[torch.nn.Module], torch.nn.Module]:
    def put(model: torch.nn.Module) -> torch.nn.Module:
        for parameter in model.parameters():
            parameter.data.fill_(value)
        return model

    return put


MODELS: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "by chance": random_weights,
    "constant": same_weights(0.0),
    "no numbers": same_weights(math.nan),
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = list("abcdefghijklmnop")


@pytest.fixture(scope="module")
def guessers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    """Masked-word models that never learnt anything, and text of theirs, hidden or not."""
    made = {}
    for name, spoil in MODELS.items():
        folder = tmp_path_factory.mktemp("guesser")
        (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *LETTERS]) + "\n")
        BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
        config = BertConfig(
            vocab_size=21, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=32,
        )  # fmt: skip
        random_weights(BertForMaskedLM(config)).save_pretrained(folder)
        rng = np.random.default_rng(3)
        texts = tuple(" ".join(rng.choice(LETTERS, 8)) for _ in range(20))
        embedding = open_embeddings(folder)
        hide = Sanitizer(embedding, Recipe("random"), seed=1)
        same = Sanitizer(embedding, Recipe("santext", 1e6), seed=1)
        target = open_masked(folder, Masked(texts, hide, same))
        model = spoil(copy.deepcopy(target.reader.model))
        made[name] = replace(target, reader=replace(target.reader, model=model))
    return made


def unseen(target: Target, model: str, reference: bool = False) -> Target:
    """The target with a model that never saw its text; so many records of either side."""
    other = replace(target.reader, model=MODELS[model](copy.deepcopy(target.reader.model)))
    members = Corpus.from_records(sentences(80, 21, "train"))
    others = Corpus.from_records(sentences(80, 22, "test"))
    return replace(
        target, reader=other, members=members, others=others,
        reference=target.reader if reference else None,
    )  # fmt: skip


def named(count: int, rng: Rng, split: str, by_user: bool) -> Corpus:
    """Records that each name somebody; some are named often, most of them once."""
    names = [f"N{min(int(rng.zipf(1.5)), 10**6):07d}" for _ in range(count)]
    return Corpus.from_records(
        {"id": f"{split}{i}", "text": name, **({"user": f"{split}{i // 3}"} if by_user else {})}
        for i, name in enumerate(names)
    )


@pytest.mark.parametrize("by_user", [True, False])
@pytest.mark.parametrize("sizes", [(300, 60), (60, 300)], ids=str)
def test_common_names_are_no_secrets_of_the_larger_text(
    target: Target, sizes: tuple[int, int], by_user: bool
) -> None:
    """A model that saw neither text finds a name the likelier the commoner it is."""
    rng = np.random.default_rng(0)
    areas, all_of_them = [], []
    for _ in range(40):
        both = [named(n, rng, s, by_user) for n, s in zip(sizes, ("in", "out"), strict=True)]
        mentions = tuple(
            Mention(i, 0, 8, "PERSON", "x", 1.0, "gold")
            for corpus in both
            for i in corpus.column("id").to_pylist()
        )
        place = replace(target, members=both[0], others=both[1], mentions=mentions, planted=None)
        sides = matched_names(place, rng)["PERSON"]
        assert not sides[0] & sides[1]
        scores = [np.array([-float(name[1:]) for name in sorted(side)]) for side in sides]
        areas.append(auc(scores[0], scores[1])[0])
        known = [set(c.column("text").to_pylist()) for c in both]
        naive = (known[0], known[1] - known[0])
        scores = [np.array([-float(name[1:]) for name in side]) for side in naive]
        all_of_them.append(auc(scores[0], scores[1])[0])
    assert abs(np.mean(areas) - 0.5) < 4 * np.std(areas) / math.sqrt(40)
    assert np.mean(all_of_them) > 0.6  # what would have been called a leak


def test_authors_who_differ_in_their_text_are_no_leak(target: Target) -> None:
    """A model that never saw them tells them, too: by what they write."""
    rng = np.random.default_rng(0)
    words = ["the", "parcel", "came", "late", "today", "please", "send", "it", "again"]
    own = Corpus.from_records(
        {"id": f"{u}-{i}", "user": f"u{u}", "text": " ".join([*rng.choice(words, 3), words[u]])}
        for u in range(6)
        for i in range(20)
    )
    place = replace(unseen(target, "by chance"), members=own)
    scores = ATTACKS["linkage"].run(place, rng=np.random.default_rng(0))
    assert scores.intervals["accuracy_from_model"][0] > scores.figures["chance"]
    assert scores.verdict is not None
    assert scores.verdict.leak == "cannot tell"  # it knows the order of words, which counts do not
    assert "--reference" in scores.verdict.words
    same = replace(place, reference=place.reader)
    scores = ATTACKS["linkage"].run(same, rng=np.random.default_rng(0))
    assert scores.figures["accuracy_from_reference"] == scores.figures["accuracy_from_model"]
    assert scores.verdict is not None
    assert scores.verdict.leak == "not shown"


@pytest.mark.parametrize(
    ("beside", "leak"),
    [
        ({"words": 0.5}, "cannot tell"),
        ({"words": 0.9}, "not shown"),
        ({"words": 0.5, "reference": 0.5}, "shown"),
        ({"words": 0.5, "reference": 0.88}, "not shown"),
    ],
)
def test_authors_are_compared_with_words_and_a_reference(
    beside: dict[str, float], leak: str
) -> None:
    right = {name: np.arange(100) < 100 * share for name, share in beside.items()}
    right["model"] = np.arange(100) < 90
    assert authors_verdict(right, (0.8, 0.95), 0.2).leak == leak
    assert authors_verdict(right, (0.1, 0.3), 0.2).leak == "not shown"


COUNTS = {
    "exposure": {"most_possible_bits", "chance_bits", "largest_bits", "largest_by_chance",
                 "planted", "controls"},
    "secrets": {"real", "made_up"},
    "extraction": {"texts"},
    "linkage": {"chance", "authors", "tested_records"},
    "masks": {"words", "guessed_by_chance"},
}  # fmt: skip
"""Figures that are no estimates; all others have an interval."""


def sane(scores: Scores) -> None:
    for name, value in scores.figures.items():
        assert not math.isinf(value), name
        if name in COUNTS.get(scores.attack, ()):
            continue
        low, high = scores.intervals[name]
        assert low <= value <= high, name
    guessing = {
        "auc": 0.5, "records_auc": 0.5, "users_auc": 0.5, "accuracy": 0.5, "records_accuracy": 0.5,
        "users_accuracy": 0.5, "accuracy_two_passes": 0.5, "tpr_at_0.01": 0.01,
        "records_tpr_at_0.01": 0.01, "users_tpr_at_0.01": 0.01,
        "mean_bits": scores.figures.get("chance_bits", 0),
        "control_bits": scores.figures.get("chance_bits", 0),
    }  # fmt: skip
    for name, chance in guessing.items():
        if name in scores.intervals:
            low, high = scores.intervals[name]
            assert low <= chance <= high, name
    assert scores.verdict is not None
    assert scores.verdict.leak in ("not shown", "cannot tell"), str(scores.verdict)
    if scores.attack in ("membership", "secrets", "exposure"):
        assert scores.verdict.leak == "not shown"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ATTACKS.names())
def test_every_attack_finds_nothing_in_a_model_that_never_saw_the_text(
    name: str, model: str, target: Target, guessers: dict[str, Target]
) -> None:
    """Every registered attack: one that is added is tried here, too."""
    place = guessers[model] if name == "masks" else unseen(target, model)
    sane(ATTACKS[name].run(place, rng=np.random.default_rng(0)))


def test_nor_with_a_reference(target: Target) -> None:
    place = unseen(target, "by chance", reference=True)
    for name in ("membership", "tab"):
        sane(ATTACKS[name].run(place, rng=np.random.default_rng(0)))
    alone = replace(place, planted=None)
    scores = ATTACKS["tab"].run(alone, rng=np.random.default_rng(0))
    assert {"real_canaries_reproduced", "held_out_records_reproduced"} <= set(scores.figures)
    sane(scores)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in ATTACKS.names() if name != "masks"])
def test_few_records_and_canaries_show_nothing_either(
    name: str, count: int, target: Target, plan: Planted
) -> None:
    place = unseen(target, "by chance")
    assert place.members is not None
    assert place.others is not None
    few = (*plan.inside()[:count], *plan.outside()[:count])
    place = replace(
        place,
        members=place.members.take(list(range(count))),
        others=place.others.take(list(range(count))),
        planted=replace(plan, canaries=few),
    )
    if name == "linkage":
        assert "two users" in str(ATTACKS[name].too_little(place))
        return
    attack = ATTACKS[name]
    if isinstance(attack, Extraction):
        attack = replace(attack, texts=30)
    sane(attack.run(place, rng=np.random.default_rng(0)))


def test_one_text_is_masked_without_harm(guessers: dict[str, Target]) -> None:
    place = guessers["by chance"]
    assert place.masked is not None
    one = replace(place, masked=replace(place.masked, texts=("a",)))
    sane(ATTACKS["masks"].run(one, rng=np.random.default_rng(0)))


def test_a_model_that_learnt_its_text_is_found_out(target: Target) -> None:
    """The same attacks do see what there is to see: else the tests above would mean nothing."""
    found = {
        name: ATTACKS[name].run(target, rng=np.random.default_rng(0))
        for name in ("exposure", "membership", "secrets")
    }
    assert found["exposure"].verdict is not None
    assert found["exposure"].verdict.leak == "shown"
    assert found["membership"].intervals["records_auc"][0] > 0.5
    assert found["secrets"].figures["auc"] > 0.7  # four canaries against four


def test_a_verdict_is_kept_with_the_scores() -> None:
    made = Scores("x", {}, verdict=against_controls("canaries", [Counted(9, 9)], Counted(0, 9)))
    assert TypeAdapter(Scores).validate_python(made.as_dict()) == made
