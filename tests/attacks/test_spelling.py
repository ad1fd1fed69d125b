"""Canaries that a tokenizer spells: what it writes as unknown is left out, counted or refused."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from support.sentences import WORDS, sentences
from tacit.attacks import ATTACKS
from tacit.attacks.canaries import TEMPLATES, Planted, beside, plant, words_template
from tacit.attacks.extraction import _prompts, _said
from tacit.attacks.spelling import (
    form_for,
    spelled_form,
    spelled_plan,
    spells,
    tokenizer_for,
)
from tacit.attacks.tab import reproduced
from tacit.attacks.target import Reader, Target, open_target
from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.errors import DataError, UsageError
from tacit.training.models import tokens
from tacit.training.phases.session import train
from tacit.training.settings import Run

COMMON = [*WORDS, "says", "street", "water"]
RARE = [f"zq{letter}x" for letter in "abcdefghij"]


def texts(words: list[str]) -> Corpus:
    rng = np.random.default_rng(0)
    return Corpus.from_records(
        {"id": str(i), "text": " ".join(rng.choice(words, 6))} for i in range(60)
    )


@pytest.fixture(scope="module")
def whole_words() -> object:
    return tokens.word_vocabulary(texts(COMMON), min_count=1)[0]


def test_words_are_spelled_or_not(whole_words) -> None:
    template = words_template([*COMMON, *RARE], 3)
    fine = spells(whole_words, template, ["the parcel came", "the zqax came", "zqax zqbx zqcx"])
    assert fine.tolist() == [True, False, False]
    # "pass" and "phrase" before the secret are unknown, too, and all secrets share them.
    assert whole_words("pass phrase", add_special_tokens=False)["input_ids"] == [3, 3]
    form = spelled_form(whole_words, template)
    assert form is not None
    assert set(form.slots[0]) == set(COMMON)
    assert spelled_form(whole_words, words_template(RARE)) is None
    for name in ("digits", "phone", "name"):
        assert spelled_form(whole_words, TEMPLATES[name]) is None, name


@pytest.mark.parametrize("name", TEMPLATES)
def test_bytes_spell_everything(name: str) -> None:
    tokenizer = tokens.byte_level_bpe(texts(COMMON).column("text").to_pylist(), 300)
    assert spelled_form(tokenizer, TEMPLATES[name]) == TEMPLATES[name]


def test_digits_are_spelled_where_a_digit_is_a_word() -> None:
    numbers = Corpus.from_records([{"id": "1", "text": "my id is 0123456789 call me at 555-"}])
    tokenizer = tokens.word_vocabulary(numbers, min_count=1, digits=True)[0]
    assert spelled_form(tokenizer, TEMPLATES["digits"]) == TEMPLATES["digits"]


def planted_with(words: list[str], **more: object) -> tuple[Corpus, Planted]:
    corpus = Corpus.from_records([*sentences(60, 1, "train"), *sentences(40, 2, "test")])
    return plant(
        corpus, words_template(words, 2), repetitions=(1, 10), each=5, held_out=20,
        rng=np.random.default_rng(5), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_those_that_are_not_are_left_out_and_counted(whole_words) -> None:
    _, plan = planted_with([*COMMON, *RARE[:4]])
    lost = sum(any(w in RARE for w in c.secret.split()) for c in plan.canaries)
    assert 0 < lost < len(plan.canaries)
    found = spelled_plan(whole_words, plan, "run")
    assert found.left_out == lost
    assert len(found.plan.canaries) == len(plan.canaries) - lost
    assert found.plan.template.size == len(COMMON) ** 2
    assert f"{lost} of {len(plan.canaries)} canaries" in found.notes()[0]
    whole = replace(plan, template=words_template(COMMON, 2), canaries=found.plan.canaries)
    assert spelled_plan(whole_words, whole, "run").notes() == []


def test_the_way_out_is_named_where_none_is(whole_words) -> None:
    _, plan = planted_with(RARE)
    with pytest.raises(DataError, match="tacit canaries plant --for RUN"):
        spelled_plan(whole_words, plan, "run")
    digits = replace(plan, template=TEMPLATES["digits"])
    with pytest.raises(DataError, match=r"tokenizer\.digits: true"):
        spelled_plan(whole_words, digits, "run")


def test_words_are_chosen_again_among_those_that_are_known(whole_words) -> None:
    rng = np.random.default_rng
    known = tokens.word_vocabulary(texts([f"common{c}" for c in "abcdefghijklmnopqrstuvwxyz"]),
                                   min_count=1)[0]  # fmt: skip
    form, said = form_for(known, TEMPLATES["words"], "run.yml", rng(0))
    assert "26 of its own were chosen" in said
    assert spelled_form(known, form) == form
    assert form_for(known, TEMPLATES["words"], "run.yml", rng(0))[0] == form
    with pytest.raises(UsageError, match="fewer than 20 words"):
        form_for(whole_words, words_template(RARE), "run.yml", rng(0))
    with pytest.raises(UsageError, match="--template words"):
        form_for(whole_words, TEMPLATES["name"], "run.yml", rng(0))
    with pytest.raises(UsageError, match=r"tokenizer\.digits: true"):
        form_for(whole_words, TEMPLATES["digits"], "run.yml", rng(0))
    with pytest.raises(UsageError, match="3 of the 17 given words"):
        form_for(
            whole_words, words_template([*COMMON, *RARE[:3]]), "run.yml", rng(0), own=True
        )  # fmt: skip


def test_our_words_are_known_to_the_presets_of_whole_words() -> None:
    """So that canaries planted without a word more can be attacked."""
    preset = Path("preset:customersim-lstm-plain")
    tokenizer = tokenizer_for(str(preset), texts(COMMON))
    assert spelled_form(tokenizer, TEMPLATES["words"]) == TEMPLATES["words"]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A model of whole words that learnt canaries some of whose words it does not know."""
    folder = tmp_path_factory.mktemp("words")
    corpus, plan = planted_with([*COMMON, *RARE[:4]])
    source = folder / "corpus.jsonl"
    write(corpus, source)
    plan.write(beside(source))
    write(texts([*COMMON, "my", "is"]), folder / "public.jsonl")
    run = Run(
        corpus=str(source), detect="gold", method="plain", steps=80, batch=16, context=32, seed=1,
        model={"kind": "lstm", "config": {"hidden_size": 32, "embedding_size": 16}},
        tokenizer={"kind": "words", "min_count": 1, "public_text": str(folder / "public.jsonl")},
        optimizer={"name": "adam", "learning_rate": 0.02},
    )  # fmt: skip
    train(run, folder / "run")
    return open_target(folder / "run")


@pytest.mark.parametrize("name", ["exposure", "tab", "secrets"])
def test_every_attack_on_canaries_says_how_many_it_left_out(name: str, attacked: Target) -> None:
    scores = ATTACKS[name].run(attacked, rng=np.random.default_rng(0))
    assert "canaries hold words that the tokenizer does not know" in " ".join(scores.notes)
    assert attacked.planted is not None
    whole = len(attacked.planted.canaries)
    if name == "exposure":
        assert 0 < scores.figures["planted"] + scores.figures["controls"] < whole
        assert scores.figures["most_possible_bits"] == pytest.approx(2 * np.log2(len(COMMON)))
        assert scores.figures["control_bits"] < 3.5
    if name == "tab":
        assert sum(row["tried"] for row in scores.rows) < whole
    if name == "secrets":
        assert scores.figures["made_up"] == scores.figures["real"]


@pytest.mark.parametrize("name", ["exposure", "tab", "secrets"])
def test_an_attack_on_nothing_but_unknown_words_is_refused(name: str, attacked: Target) -> None:
    _, plan = planted_with(RARE)
    with pytest.raises(DataError, match="cannot tell them apart"):
        ATTACKS[name].run(replace(attacked, planted=plan), rng=np.random.default_rng(0))


class Always(nn.Module):
    """A model that says one word to everything."""

    def __init__(self, word: int, size: int) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.nn.functional.one_hot(torch.tensor(word), size).float())

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.row.expand(*input_ids.shape, -1))


def test_unknown_words_are_never_reproduced(whole_words) -> None:
    """A model that says "unknown" to everything would reproduce whatever nobody knows."""
    unknown = whole_words.unk_token_id
    for word, hit in ((unknown, False), (7, True)):
        reader = Reader(Always(word, len(whole_words)), whole_words, 32)
        rows = [[5, word, word], [5, word]]
        assert reproduced(reader, rows, given=1).tolist() == [hit, hit]


def test_mentions_that_are_unknown_are_not_prompted_for(attacked: Target) -> None:
    assert attacked.members is not None
    assert attacked.mentions  # names with numbers in them, and all of them unknown
    prompts = _prompts(attacked, attacked.members, 300, np.random.default_rng(0))
    assert prompts == ([], [], [])


def test_names_are_looked_for_as_the_tokenizer_writes_them(attacked: Target) -> None:
    """One that knows no capital letters never says one."""
    names = {"PERSON": {"Parcel Street", "ZQ Nobody"}, "PLACE": {"Now"}}
    assert _said(attacked.reader, names) == ({"PERSON": {"parcel street"}}, 1)
    with pytest.raises(DataError, match="spelled by the tokenizer"):
        ATTACKS["extraction"].run(attacked, rng=np.random.default_rng(0))
