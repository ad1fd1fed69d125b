"""The tagger learns, is saved whole, comes back the same, and says what is wrong."""

import dataclasses
import hashlib
import json
import random
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus import Corpus, Record, Span
from tacit.detection.detector import open_detectors
from tacit.detection.tagger.lines import Gold, align, mention_runs, tokenize
from tacit.detection.tagger.tagger import Tagger, TaggerSummary, train
from tacit.errors import DataError, UsageError

FIRST = ["Dana", "Imre", "Ruth", "Jonas", "Mira", "Odile", "Bram", "Sefa", "Tilda", "Karim"]
LAST = ["Whitlow", "Castel", "Ambler", "Pell", "Okonjo", "Farrow", "Lindqvist", "Abara", "O'Shea"]
CITIES = ["Harrowgate", "Lindmere", "Port Sable", "Quillan", "Vestry Bay", "Ombra", "Tarn"]
FIRMS = ["Brizzo", "Lumetta", "Vantico", "Northmill", "Corvane", "Ashgrove"]
TURNS = [
    ("SYS: Hello, how can I help?", []),
    ("USR: My name is {p}, I live in {c}.", ["PERSON", "GPE"]),
    ("USR: The parcel from {o} Ltd never came to {c}.", ["ORG", "GPE"]),
    ("SYS: Thank you, {p}. Is {n} your order?", ["PERSON", "PII/ORDER"]),
    ("USR: Yes, order {n}, sold by {o} Ltd.", ["PII/ORDER", "ORG"]),
    ("SYS: We told {p}'s neighbour and closed case {n}.", ["PERSON", "PII/ORDER"]),
    ("USR: That is all. Is the shop open on Monday?", []),
]


def filled(slot: str, names: slice, rng: random.Random) -> str:
    if slot == "p":
        return f"{rng.choice(FIRST[names])} {rng.choice(LAST[names])}"
    if slot == "n":
        return f"{rng.choice('ABC')}-{rng.randint(10_000, 99_999)}"
    return rng.choice((CITIES if slot == "c" else FIRMS)[names])


def dialogs(n: int, seed: int, names: slice = slice(None)) -> list[Record]:
    """Dialogs of our own with gold spans, three for each user."""
    rng = random.Random(seed)
    records = []
    for number in range(n):
        text, spans = "", []
        for pattern, kinds in rng.sample(TURNS, 4):
            waiting = iter(kinds)
            for i, part in enumerate(pattern.replace("}", "{").split("{")):
                word = filled(part, names, rng) if i % 2 else part
                if i % 2:
                    spans.append(Span(len(text), len(text) + len(word), next(waiting)))
                text += word
            text += "\n"
        records.append(Record(f"d{number}", text, user=f"u{number // 3}", spans=tuple(spans)))
    return records


def as_tagged(record: Record) -> Record:
    """The same record as tokens and BIO tags, as NER corpora come."""
    offsets = tokenize(record.text, "pieces")
    tags = ["O"] * len(offsets)
    for span in record.spans or ():
        inside = [i for i, (s, e) in enumerate(offsets) if s < span.end and span.start < e]
        for place, i in enumerate(inside):
            tags[i] = ("I-" if place else "B-") + span.kind
    tokens = tuple(record.text[s:e] for s, e in offsets)
    return dataclasses.replace(record, tokens=tokens, tags=tuple(tags), spans=None)


def _words(text: str) -> list[str]:
    return text.replace(":", " :").replace(",", " ,").replace(".", " .").split()


def f1(tagger: Tagger, records: list[Record]) -> float:
    right = found = wanted = 0
    for record, findings in zip(records, tagger.find(records), strict=True):
        gold = {(s.start, s.end, s.kind) for s in record.spans or ()}
        seen = {(f.start, f.end, f.kind) for f in findings}
        right, found, wanted = right + len(gold & seen), found + len(seen), wanted + len(gold)
    return 2 * right / (found + wanted)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.from_records(dialogs(90, seed=1, names=slice(0, 5)), name="made")


@pytest.fixture(scope="module")
def trained(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TaggerSummary]:
    out = tmp_path_factory.mktemp("tagger") / "deep" / "tagger"
    return out, train(corpus, out, iterations=40)


def test_it_finds_names_that_it_never_saw(trained: tuple[Path, TaggerSummary]) -> None:
    tagger = Tagger.load(trained[0])
    assert f1(tagger, dialogs(40, seed=2, names=slice(0, 5))) > 0.97
    # Only the surroundings can tell here, since every name is new.
    assert f1(tagger, dialogs(40, seed=3, names=slice(5, None))) > 0.80


def test_findings_have_a_probability_and_a_reason(trained: tuple[Path, TaggerSummary]) -> None:
    for findings in Tagger.load(trained[0]).find(dialogs(5, seed=4)):
        assert findings == sorted(findings, key=lambda f: f.start)
        for finding in findings:
            assert 0.0 < finding.score <= 1.0
            assert finding.why == "tagger"


def test_the_summary_counts(corpus: Corpus, trained: tuple[Path, TaggerSummary]) -> None:
    out, summary = trained
    spans = [s for r in corpus.records() for s in r.spans or ()]
    assert summary.records == len(corpus)
    assert sum(summary.mentions.values()) == len(spans)
    assert set(summary.mentions) == {"PERSON", "GPE", "ORG", "PII/ORDER"}
    assert (summary.unmarked, summary.widened, summary.held_out) == (0, 0, 0)
    assert 1 <= summary.iterations <= 40
    assert summary.corpus == corpus.digest()
    assert {p.name for p in out.iterdir()} == {"tagger.crfsuite", "lexicon.json", "tagger.json"}
    about = json.loads((out / "tagger.json").read_text())
    assert about["kinds"] == sorted(summary.mentions)
    assert about["tokenizer"] == "pieces"
    assert about["trained"]["corpus"] == corpus.digest()


def test_equal_arguments_give_equal_taggers(corpus: Corpus, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    for name in ("a", "b"):
        train(
            corpus, tmp_path / name, iterations=4, seed=7, progress=lambda *now: steps.append(now)
        )
    train(corpus, tmp_path / "c", iterations=4, seed=8)
    model = [hashlib.sha256((tmp_path / n / "tagger.crfsuite").read_bytes()) for n in "abc"]
    assert model[0].digest() == model[1].digest() != model[2].digest()
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)] * 2


def test_it_learns_from_tags_and_uses_the_tokens_it_is_given(tmp_path: Path) -> None:
    records = [as_tagged(r) for r in dialogs(60, seed=5)]
    train(Corpus.from_records(records), tmp_path / "t", iterations=30)
    tagger = Tagger.load(tmp_path / "t")
    assert tagger.tokenizer == "given"
    # Our own token rule would cut this place in three.
    text = "USR: My name is Ruth Pell, I live in Tarn_Bay."
    told = Record("1", text, tokens=tuple(_words(text)))
    (findings,) = tagger.find([told])
    assert [text[f.start : f.end] for f in findings] == ["Ruth Pell", "Tarn_Bay"]
    # Tokens that do not make up the text are left aside.
    astray = dataclasses.replace(told, tokens=("USR", "quite", "other"))
    (findings,) = tagger.find([astray])
    assert "Ruth Pell" in [text[f.start : f.end] for f in findings]


def test_held_out_users_are_scored_and_not_learned(corpus: Corpus, tmp_path: Path) -> None:
    summary = train(corpus, tmp_path / "t", iterations=30, held_out=0.2, seed=1)
    assert summary.held_out == 18
    assert summary.records + summary.held_out == len(corpus)
    assert summary.held_out_score["all"].f1 > 0.8
    wanted = [s.mentions for kind, s in summary.held_out_score.items() if kind != "all"]
    assert summary.held_out_score["all"].mentions == sum(wanted)


def test_text_without_case_is_learned_too(tmp_path: Path) -> None:
    def lowered(records: list[Record]) -> list[Record]:
        return [dataclasses.replace(r, text=r.text.lower()) for r in records]

    train(Corpus.from_records(lowered(dialogs(90, seed=6))), tmp_path / "t", iterations=30)
    assert f1(Tagger.load(tmp_path / "t"), lowered(dialogs(30, seed=7))) > 0.9


def test_a_mention_may_run_over_a_line_end(tmp_path: Path) -> None:
    rng = random.Random(8)
    records = []
    for i in range(60):
        street = f"{rng.randint(1, 99)} {rng.choice(LAST)} Street\n{rng.choice(CITIES)}"
        text = f"Send it to {street} please.\nThanks, {rng.choice(FIRST)}"
        records.append(Record(str(i), text, spans=(Span(11, 11 + len(street), "ADDRESS"),)))
    summary = train(Corpus.from_records(records[:50]), tmp_path / "t", iterations=30)
    assert summary.mentions == {"PII/ADDRESS": 50}
    for record, findings in zip(
        records[50:], Tagger.load(tmp_path / "t").find(records[50:]), strict=True
    ):
        assert [(f.start, f.end, f.kind) for f in findings] == [
            (s.start, s.end, "PII/ADDRESS") for s in record.spans or ()
        ]


@pytest.fixture(scope="module")
def tagger(trained: tuple[Path, TaggerSummary]) -> Tagger:
    return Tagger.load(trained[0])


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.text(max_size=60), st.sampled_from([None, "u", "v"])), min_size=1, max_size=4
    )
)
def test_any_text_gets_findings_inside_it(
    tagger: Tagger, texts: list[tuple[str, str | None]]
) -> None:
    records = [Record(str(i), text, user=user) for i, (text, user) in enumerate(texts)]
    found = tagger.find(records)
    assert len(found) == len(records)
    for record, findings in zip(records, found, strict=True):
        end = 0
        for finding in findings:
            assert end <= finding.start < finding.end <= len(record.text)
            end = finding.end


@pytest.mark.parametrize("text", ["\ud800 Dana", "a" * 300_000, "Dana " * 30_000, "\n" * 5000, ""])
def test_odd_records_do_not_stop_it(tagger: Tagger, text: str) -> None:
    assert len(tagger.find([Record("1", text, user="u")])) == 1


def test_no_records_no_findings(tagger: Tagger) -> None:
    assert tagger.find([]) == []


@given(st.text(max_size=80), st.sampled_from(["pieces", "given"]))
def test_tokens_are_all_of_the_text_but_space(text: str, rule: str) -> None:
    offsets = tokenize(text, rule)
    assert "".join(text[s:e] for s, e in offsets) == "".join(text.split())
    assert all(a[1] <= b[0] for a, b in pairwise(offsets))
    assert align(text, [text[s:e] for s, e in offsets]) == offsets


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The U.S.-based firm", ["The", "U.S.-based", "firm"]),
        ("Mr. O'Hara's 3-2 win", ["Mr.", "O'Hara", "'s", "3-2", "win"]),
        ("on 1996-08-22, he", ["on", "1996-08-22", ",", "he"]),
        ("J. Pell left.", ["J.", "Pell", "left", "."]),
    ],
)
def test_words_are_cut_as_treebanks_cut_them(text: str, tokens: list[str]) -> None:
    assert [text[s:e] for s, e in tokenize(text, "given")] == tokens


@pytest.mark.parametrize(
    ("tags", "meant"),
    [
        ("B-PER I-PER O B-LOC", "B-PERSON I-PERSON O B-LOC"),
        ("I-PER I-PER O I-LOC", "B-PERSON I-PERSON O B-LOC"),
        ("B-PER E-PER S-PER S-LOC", "B-PERSON I-PERSON B-PERSON B-LOC"),
        ("B-PER L-PER U-PER U-LOC", "B-PERSON I-PERSON B-PERSON B-LOC"),
        ("B-PER B-PER I-LOC I-PER", "B-PERSON B-PERSON B-LOC B-PERSON"),
    ],
)
def test_the_ways_to_write_tags(tags: str, meant: str) -> None:
    row = {"id": "1", "text": "a b c d", "tokens": list("abcd"), "tags": tags.split()}
    (lines,) = Gold(Corpus.from_records([row])).lines.values()
    assert lines[0].tags == meant.split()


def test_spans_that_do_not_fit_tokens_or_overlap() -> None:
    marks = [(0, 2, "PERSON"), (5, 13, "ORG"), (10, 16, "GPE"), (13, 14, "ORG"), (17, 18, "LOC")]
    row = {"id": "1", "text": "Anna at Bank of X \u00a0"}
    spans = [{"start": s, "end": e, "kind": k} for s, e, k in marks]
    gold = Gold(Corpus.from_records([{**row, "spans": spans}]))
    assert gold.lines[0][0].tokens == ["Anna", "at", "Bank", "of", "X"]
    # Widened to whole tokens; of two that overlap the longer; white space marks nothing.
    assert gold.lines[0][0].tags == ["B-PERSON", "B-ORG", "I-ORG", "B-ORG", "O"]
    assert gold.widened == 2


def test_runs_are_the_mentions() -> None:
    assert list(mention_runs(["I-A", "I-A", "B-A", "O", "I-B", "I-A"])) == [
        (0, 2, "A"),
        (2, 3, "A"),
        (4, 5, "B"),
        (5, 6, "A"),
    ]


TEXT_ROW = {"id": "1", "text": "secret words"}
TAG_ROW = {**TEXT_ROW, "tokens": ["secret", "words"]}
SPAN_ROW = {**TEXT_ROW, "spans": [{"start": 0, "end": 6, "kind": "secret"}]}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (TEXT_ROW, "no marked record"),
        ({**TAG_ROW, "tags": ["O", "O"]}, "no mention to learn from in 1"),
        ({**TAG_ROW, "tags": ["O", "secret"]}, "record 1, has a tag at token"),
        ({**TAG_ROW, "tags": ["O", "B-"]}, "record 1, has a tag at token"),
        ({**TAG_ROW, "tags": ["", "O"]}, "record 1, has a tag at token"),
        ({**TAG_ROW, "tags": ["O", "B-secret"]}, "record 1, names an unknown kind"),
        (SPAN_ROW, "record 1, names an unknown kind"),
    ],
)
def test_a_corpus_that_teaches_nothing_is_refused(
    row: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=words) as caught:
        train(Corpus.from_records([row]), tmp_path / "t")
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"iterations": 0}, "iterations=0"),
        ({"held_out": 1.0}, "held_out=1.0"),
        ({"held_out": -0.1}, "held_out=-0.1"),
        ({"held_out": 0.999}, "held_out=0.999 leaves nothing"),
    ],
)
def test_options_that_cannot_be(
    corpus: Corpus, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        train(corpus, tmp_path / "t", **options)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_unasked(
    corpus: Corpus, trained: tuple[Path, TaggerSummary], tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    with pytest.raises(UsageError, match="exists"):
        train(corpus, mine)
    with pytest.raises(UsageError, match="not a tagger's folder"):
        train(corpus, mine, overwrite=True)
    assert (mine / "notes.txt").read_text() == "keep"
    old = tmp_path / "old"
    shutil.copytree(trained[0], old)
    train(corpus, old, overwrite=True, iterations=2)
    assert json.loads((old / "tagger.json").read_text())["settings"]["iterations"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "old"]


def test_an_interrupted_training_leaves_nothing(corpus: Corpus, tmp_path: Path) -> None:
    def stop(done: int, most: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(corpus, tmp_path / "t", progress=stop)
    assert list(tmp_path.iterdir()) == []


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: shutil.rmtree(f), "not a tagger's folder"),
        (lambda f: (f / "tagger.json").unlink(), "not a tagger's folder"),
        (lambda f: (f / "tagger.json").write_text("{"), "damaged"),
        (lambda f: (f / "tagger.json").write_bytes(b"\xff\xfe"), "damaged"),
        (lambda f: (f / "tagger.json").write_text("[]"), "damaged"),
        (lambda f: _edit(f / "tagger.json", kinds=None), "damaged"),
        (lambda f: _edit(f / "tagger.json", sha256={}), "damaged"),
        (lambda f: _edit(f / "tagger.json", sha256=None), "damaged"),
        (lambda f: _edit(f / "tagger.json", tokenizer=["gold"]), "damaged"),
        (lambda f: _edit(f / "tagger.json", format=99), "format 99.*train the tagger again"),
        (lambda f: _edit(f / "tagger.json", features=99), "features 99"),
        (lambda f: (f / "tagger.crfsuite").unlink(), "tagger.crfsuite does not exist"),
        (lambda f: (f / "tagger.crfsuite").write_bytes(b""), "tagger.crfsuite is damaged"),
        (lambda f: (f / "lexicon.json").write_text("{}"), "lexicon.json is damaged"),
    ],
)
def test_a_damaged_folder_is_named(
    trained: tuple[Path, TaggerSummary], damage: Any, words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained[0], folder)
    damage(folder)
    with pytest.raises(DataError, match=words) as caught:
        Tagger.load(folder)
    assert str(folder) in str(caught.value)


def test_by_name(trained: tuple[Path, TaggerSummary]) -> None:
    (tagger,) = open_detectors(f"tagger={trained[0]}")
    assert tagger.name == "tagger"
    with pytest.raises(UsageError, match="tacit detect train"):
        open_detectors("tagger")


@pytest.mark.slow
def test_conll2003_is_learned_well(data_dir: Path, tmp_path: Path) -> None:
    from seqeval.metrics import f1_score

    out = tmp_path / "tagger"
    train(_conll(data_dir / "conll2003" / "train.txt"), out)
    tagger = Tagger.load(out)
    gold, seen = [], []
    for batch in _conll(data_dir / "conll2003" / "test.txt").batches(256):
        for record, findings in zip(batch, tagger.find(batch), strict=True):
            offsets = align(record.text, record.tokens or ()) or []
            tags = ["O"] * len(offsets)
            for f in findings:
                inside = [i for i, (s, e) in enumerate(offsets) if f.start <= s and e <= f.end]
                for place, i in enumerate(inside):
                    tags[i] = ("I-" if place else "B-") + f.kind.replace("PERSON", "PER")
            gold.append(list(record.tags or ()))
            seen.append(tags)
    assert f1_score(gold, seen) > 0.80


def _conll(path: Path) -> Corpus:
    rows: list[dict[str, Any]] = []
    document = 0
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        columns = [line.split() for line in block.splitlines() if line.strip()]
        if not columns or columns[0][0] == "-DOCSTART-":
            document += bool(columns)
            continue
        tokens = [c[0] for c in columns]
        tags = [c[-1] for c in columns]
        row = {"id": str(len(rows)), "user": f"doc {document}", "text": " ".join(tokens)}
        rows.append({**row, "tokens": tokens, "tags": tags})
    return Corpus.from_records(rows, name=path.stem)
