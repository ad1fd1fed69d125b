"""Attacks over the models that a run kept, and on sanitized text."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (  # type: ignore[attr-defined]
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
)

from support.sentences import DIGITS, sentences
from tacit.attacks import ATTACKS
from tacit.attacks.attack import missing, read_series, write_series
from tacit.attacks.canaries import beside, plant
from tacit.attacks.running import at_step, last_step, run_attacks, steps_of, wanted
from tacit.attacks.target import Masked, Target, open_masked, open_target
from tacit.cli.common import progress
from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.errors import DataError, UsageError
from tacit.sanitization import Recipe, Sanitizer, open_embeddings
from tacit.training.phases.checkpoints import kept_models
from tacit.training.phases.session import train
from tacit.training.settings import Run
from tacit.training.tasks.masking import Pretraining, pretrain


def test_every_kept_model_is_attacked_with_its_own_perplexity(target: Target) -> None:
    steps = steps_of(target)
    assert steps == [83, 167, None]
    assert last_step(target) == 250
    models = {step or 250: at_step(target, step) for step in steps}
    assert models[250] is target
    perplexities = [one.perplexity for one in models.values()]
    assert len(set(perplexities)) == 3
    attacks = wanted(target, "exposure")
    found = {step: run_attacks(one, attacks, progress, seed=0)[0] for step, one in models.items()}
    assert [s.perplexity for s in found.values()] == perplexities
    by_step = [{r["repetitions"]: r["mean_bits"] for r in s.rows}[20] for s in found.values()]
    # What was repeated twenty times is learnt on the way, not at once.
    assert by_step[0] <= by_step[1] <= by_step[2]
    assert by_step[0] < by_step[2]
    alone = ATTACKS["exposure"].run(target, rng=np.random.default_rng(0))
    assert found[250].as_dict() == alone.as_dict()


def test_scores_over_steps_save_and_join(target: Target, tmp_path: Path) -> None:
    scores = ATTACKS["exposure"].run(target, rng=np.random.default_rng(0))
    other = replace(scores, attack="other", perplexity=3.5)
    path = tmp_path / "series.json"
    write_series(path, {10: {"exposure": scores}, 20: {"exposure": scores}})
    write_series(path, {10: {"other": other}, 20: {"other": other}})
    again = read_series(path)
    assert list(again) == [10, 20]
    assert set(again[10]) == {"exposure", "other"}
    assert again[20]["other"].as_dict() == other.as_dict()


def test_what_kept_nothing_is_told_how(target: Target, learnt: Path, tmp_path: Path) -> None:
    assert kept_models(learnt / "run")
    bare = tmp_path / "bare"
    shutil.copytree(learnt / "run", bare, ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(DataError, match="keep_checkpoints"):
        steps_of(replace(target, folder=bare))
    with pytest.raises(UsageError, match="is not a run"):
        steps_of(replace(target, ctx=None))


def test_canaries_that_the_caps_drop_are_counted(tmp_path: Path) -> None:
    """An entity of five users, under a cap of one: four records are gone before any noise."""
    corpus = Corpus.from_records(sentences(60, 1, "train"))
    planted, plan = plant(
        corpus, DIGITS, repetitions=(1, 5), each=2, held_out=2, placing="entity",
        rng=np.random.default_rng(3),
    )  # fmt: skip
    source = tmp_path / "corpus.jsonl"
    write(planted, source)
    plan.write(beside(source))
    run = Run(
        corpus=str(source), detect="gold", context=48, seed=1,
        plan={
            "protect": "users+entities", "epsilon": 8, "steps": 1, "user_rate": 0.5,
            "users_per_entity": 1, "kinds": ["PII/ID"],
        },
        model={"kind": "lstm", "config": {"hidden_size": 8, "embedding_size": 8}},
        tokenizer={"kind": "bpe", "size": 300},
    )  # fmt: skip
    done = train(run, tmp_path / "run")
    target = open_target(tmp_path / "run")
    assert target.kept is not None
    assert len(target.kept) == done.metrics["bounding"]["records_kept"]
    scores = ATTACKS["exposure"].run(target, rng=np.random.default_rng(0))
    kept = {row["repetitions"]: row.get("records_kept") for row in scores.rows}
    assert kept == {0: None, 1: 2, 5: 2}
    assert "dropped 8 records of canaries" in " ".join(scores.notes)


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = list("abcdefghijklmnop")


def alike(count: int, seed: int) -> list[str]:
    """Texts of one letter each: what is seen tells what is hidden."""
    rng = np.random.default_rng(seed)
    return [" ".join([LETTERS[n]] * 8) for n in rng.integers(0, len(LETTERS), count)]


@pytest.fixture(scope="module")
def guesser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A very small masked-word model that can fill the masks of such texts."""
    folder = tmp_path_factory.mktemp("encoder")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *LETTERS]) + "\n")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=21, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    how = Pretraining(steps=60, learning_rate=5e-3, context=16, held_out=50, seed=1)
    pretrain(folder, alike(400, 0), folder / "trained", how)
    return folder / "trained"


def masked(guesser: Path, recipe: Recipe) -> Target:
    embedding = open_embeddings(guesser)
    same = Sanitizer(embedding, Recipe("santext", 1e6), seed=1)
    texts = tuple(alike(30, 9))
    return open_masked(guesser, Masked(texts, Sanitizer(embedding, recipe, seed=1), same))


def test_masks_are_guessed_by_the_registered_attack(guesser: Path) -> None:
    attack = ATTACKS["masks"]
    figures = {}
    for name, recipe in (("same", Recipe("santext", 1e6)), ("random", Recipe("random"))):
        target = masked(guesser, recipe)
        assert not missing(attack, target.has())
        assert wanted(target, None) == [attack]
        scores = attack.run(target, rng=np.random.default_rng(0))
        assert scores.figures["words"] == 240
        for figure, (low, high) in scores.intervals.items():
            assert low <= scores.figures[figure] <= high
        figures[name] = scores.figures
    assert figures["same"]["defence_rate"] == figures["same"]["defence_rate_unsanitized"] < 0.3
    assert figures["random"]["defence_rate_unsanitized"] == figures["same"]["defence_rate"]
    assert figures["random"]["defence_rate"] > 0.75


def test_other_attacks_find_nothing_in_sanitized_text(guesser: Path) -> None:
    target = masked(guesser, Recipe("random"))
    with pytest.raises(DataError, match="canaries"):
        wanted(target, "exposure")


def test_a_pickled_guesser_is_refused(guesser: Path, tmp_path: Path) -> None:
    work = masked(guesser, Recipe("random")).masked
    assert work is not None
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(guesser / name, tmp_path / name)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(DataError, match="pickled weights are never loaded"):
        open_masked(tmp_path, work)
