"""Every figure of an attack against the same computed slowly, by hand."""

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.attacks import ATTACKS
from tacit.attacks.canaries import Planted
from tacit.attacks.extraction import _prompts, _ranked, free_rows
from tacit.attacks.linkage import Linkage
from tacit.attacks.membership import Membership
from tacit.attacks.rates import auc
from tacit.attacks.secrets import perplexity_scores
from tacit.attacks.tab import reproduced, texts_ids
from tacit.attacks.target import Reader, Target, open_target
from tacit.corpus import Corpus
from tacit.training.phases.checkpoints import kept_models


def whole_loss(reader: Reader, text: str) -> tuple[float, int]:
    """The loss of a record's tokens, end included, one pass for each of them; and how many."""
    first, last = reader.task.frame(reader.tokenizer)
    ids = [*first, *reader.tokenizer(text, add_special_tokens=False)["input_ids"], *last]
    reader.model.eval()
    lost = 0.0
    with torch.no_grad():
        for at in range(1, len(ids)):
            logits = reader.model(input_ids=torch.tensor([ids[:at]])).logits[0, -1].double()
            lost -= float(logits.log_softmax(-1)[ids[at]])
    return lost, len(ids) - 1


@pytest.fixture(scope="module")
def few(learnt: Path) -> Target:
    """Some members and others, users of unequal size, and a reference that learnt less."""
    reference = kept_models(learnt / "run")[83]
    target = open_target(learnt / "run", reference=reference, perplexity=False)
    assert target.members is not None
    assert target.others is not None
    names = [f"train{i}" for i in (0, 10, 20, 30, 1, 2, 12)]
    ids = target.members.column("id").to_pylist()
    members = target.members.take([ids.index(name) for name in names])
    return replace(target, members=members, others=target.others.take([0, 1, 2, 10, 11]))


def test_membership_scores_are_those_of_single_records(few: Target) -> None:
    assert few.reference is not None
    scored: dict[str, list[list[tuple[str, float]]]] = {"loss": [], "zlib": [], "reference": []}
    for corpus in (few.members, few.others):
        assert corpus is not None
        sides: dict[str, list[tuple[str, float]]] = {name: [] for name in scored}
        for record in corpus.records():
            lost, count = whole_loss(few.reader, record.text)
            other, _ = whole_loss(few.reference, record.text)
            packed = len(zlib.compress(record.text.encode()))
            sides["loss"].append((str(record.user), -lost / count))
            sides["zlib"].append((str(record.user), -lost / (8 * packed)))
            sides["reference"].append((str(record.user), (other - lost) / len(record.text)))
        for name, side in sides.items():
            scored[name].append(side)
    found = Membership().run(few, rng=np.random.default_rng(0))
    rows = {(row["of"], row["by"]): row for row in found.rows}
    for name, (inside, outside) in scored.items():
        records = [np.array([value for _, value in side]) for side in (inside, outside)]
        assert rows["records", name]["auc"] == pytest.approx(auc(*records)[0])
        assert rows["records", name]["members"] == 7
        users = [
            np.array([np.mean([v for u, v in side if u == user]) for user, _ in dict(side).items()])
            for side in (inside, outside)
        ]
        assert rows["users", name]["auc"] == pytest.approx(auc(*users)[0])
    # Named before looking: where there is a reference, it is the headline.
    assert found.figures["records_auc"] == rows["records", "reference"]["auc"]


def test_greedy_completion_is_that_of_generating_token_by_token(
    target: Target, plan: Planted
) -> None:
    assert target.members is not None
    texts = [plan.text(c) for c in plan.canaries]
    texts += target.members.column("text").to_pylist()[:20]
    ids = texts_ids(target.reader, texts)
    first, _ = target.reader.task.frame(target.reader.tokenizer)
    hits = 0
    for kept_back in (1, 2, 100):
        shown = [max(1, len(row) - kept_back) for row in ids]
        wanted = []
        for row, given in zip(ids, shown, strict=True):
            said = [*first, *row[:given]]
            with torch.no_grad():
                while len(said) < len(first) + len(row):
                    logits = target.reader.model(input_ids=torch.tensor([said])).logits
                    said.append(int(logits[0, -1].argmax()))
            wanted.append(len(row) > given and said == [*first, *row])
        assert reproduced(target.reader, ids, given=shown).tolist() == wanted
        hits += sum(wanted)
    assert 0 < hits < 3 * len(ids), "all alike, so nothing was tested"


def test_secrets_are_ranked_by_the_loss_of_their_tokens(target: Target, plan: Planted) -> None:
    texts = [plan.text(c) for c in plan.canaries[:6]]
    found = perplexity_scores(target, texts, None)
    for text, score in zip(texts, found, strict=True):
        first, last = target.reader.task.frame(target.reader.tokenizer)
        ids = [*first, *target.reader.tokenizer(text, add_special_tokens=False)["input_ids"]]
        assert last
        with torch.no_grad():
            rows = target.reader.model(input_ids=torch.tensor([ids])).logits[0].double()
        each = rows.log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]]
        assert score == pytest.approx(float(each.mean()), abs=1e-5)


def test_planted_secrets_are_told_from_made_up_ones(target: Target) -> None:
    found = ATTACKS["secrets"].run(target, rng=np.random.default_rng(0))
    assert found.figures["real"] == found.figures["made_up"] == 4
    assert found.figures["auc"] > 0.7
    assert found.figures["accuracy_two_passes"] > 0.5


def test_extraction_counts_what_came_out() -> None:
    inside = {"PERSON": {"Anna Berg", "Carl Dorn"}, "ORG": {"Acme Ltd"}}
    outside = {"PERSON": {"Eva Falk"}}
    rows = free_rows(["I am Anna Berg", "Eva Falk says"], inside, outside)
    assert {row["kind"]: row["came_out"] for row in rows} == {"ORG": 0, "PERSON": 1}
    person = next(row for row in rows if row["kind"] == "PERSON")
    assert (person["recall"], person["precision"], person["recall_held_out"]) == (0.5, 0.5, 1.0)


def test_prompts_end_where_the_mention_begins(target: Target) -> None:
    assert target.members is not None
    kinds, rows, given = _prompts(target, target.members, 30, np.random.default_rng(0))
    assert len(kinds) == 30
    for row, shown in zip(rows, given, strict=True):
        hidden = target.reader.tokenizer.decode(row[shown:]).strip()
        before = target.reader.tokenizer.decode(row[:shown])
        assert hidden.startswith("Mr")
        assert before.strip().endswith("says")


def test_the_likeliest_for_their_size_come_first(target: Target, plan: Planted) -> None:
    known = plan.text(next(c for c in plan.canaries if c.repetitions == 20))
    strange = "zq xv jw kq pz vv qj"
    assert _ranked(target, [strange, known, strange]) == [known, strange]


def marked(seed: int, mark: bool) -> Corpus:
    """Eight authors, who write the same kind of thing; with `mark`, each ends in its own way."""
    rng = np.random.default_rng(seed)
    words = ["the", "parcel", "came", "late", "today", "please", "send", "it", "again"]
    return Corpus.from_records(
        {
            "id": f"{user}-{i}",
            "user": f"u{user}",
            "text": " ".join([*rng.choice(words, 6), words[user] if mark else "now"]),
        }
        for user in range(8)
        for i in range(20)
    )


def test_authors_are_linked_only_if_their_text_tells(target: Target) -> None:
    """On records that the classifier did not see; on its own it would be right for nothing."""
    found = {
        mark: Linkage()
        .run(replace(target, members=marked(1, mark)), rng=np.random.default_rng(0))
        .figures
        for mark in (True, False)
    }
    assert found[False]["chance"] == pytest.approx(1 / 8)
    assert found[False]["accuracy_from_model"] < 0.3
    assert found[False]["accuracy_from_words"] < 0.3
    assert found[True]["accuracy_from_model"] > 0.6
    assert found[True]["tested_records"] == 80
