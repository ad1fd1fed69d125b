"""Every format gives the same corpus; every fault gets one clear sentence that quotes nothing."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus import Corpus, Span
from tacit.corpus.reading import Layout, from_dataset, read, stream
from tacit.corpus.reading.blocks import MAX_RECORD
from tacit.corpus.writing import write
from tacit.errors import DataError, TacitError, UsageError

SECRET = "zebrafish-90210"

ROWS = [
    {
        "id": "a",
        "user": "ann",
        "text": f"hello, my code is {SECRET}",
        "label": "x",
        "split": "train",
    },
    {"id": "b", "user": "bob", "text": 'she said "hi"\nand left', "label": "y", "split": "train"},
    {"id": "c", "user": "ann", "text": "naïve ☕ 日本", "label": "x", "split": "test"},
]


def corpus() -> Corpus:
    return Corpus.from_records(ROWS)


@pytest.mark.parametrize(
    "name", ["c.jsonl", "c.csv", "c.tsv", "c.parquet", "c.jsonl.gz", "c.csv.gz", "c.tsv.gz"]
)
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    write(corpus(), tmp_path / name)
    assert read(tmp_path / name).digest() == corpus().digest()


def test_gzip_is_told_by_content_and_bytes_are_reproducible(tmp_path: Path) -> None:
    for name in ("one.jsonl.gz", "two.jsonl.gz"):
        write(corpus(), tmp_path / name)
    first, second = ((tmp_path / n).read_bytes() for n in ("one.jsonl.gz", "two.jsonl.gz"))
    assert gzip.decompress(first) == gzip.decompress(second)
    (tmp_path / "plain-name.jsonl").write_bytes(first)
    assert len(read(tmp_path / "plain-name.jsonl")) == 3


def test_spans_tokens_and_tags_survive(tmp_path: Path) -> None:
    row = {
        "id": "1",
        "text": "Ann saw Bob",
        "tokens": ["Ann", "saw", "Bob"],
        "tags": ["B-PER", "O", "B-PER"],
        "spans": [{"start": 0, "end": 3, "kind": "PERSON"}],
    }
    plain = {"id": "2", "text": "no marks"}
    whole = Corpus.from_records([row, plain])
    for name in ("c.jsonl", "c.parquet"):
        write(whole, tmp_path / name)
        back = list(read(tmp_path / name).records())
        assert back[0].spans == (Span(0, 3, "PERSON"),)
        assert back[0].tags == ("B-PER", "O", "B-PER")
        assert back[1].spans is None
        assert back[1].tokens is None


def test_csv_cannot_hold_lists_and_says_so(tmp_path: Path) -> None:
    whole = Corpus.from_records([{"id": "1", "text": "a", "tokens": ["a"]}])
    with pytest.raises(UsageError, match="--drop tokens"):
        write(whole, tmp_path / "c.csv")
    write(whole, tmp_path / "c.csv", drop=["tokens"])
    assert read(tmp_path / "c.csv").columns == ("id", "text")


def test_names_are_mapped_and_numbers_become_strings(tmp_path: Path) -> None:
    file = tmp_path / "mail.jsonl"
    file.write_text(
        '{"mid": 7, "sender": 12, "msg": "hi", "cls": 1}\n{"mid": 8, "sender": 13, "msg": "ho"}\n'
    )
    layout = Layout(columns={"id": "mid", "user": "sender", "text": "msg", "label": "cls"})
    records = list(read(file, layout).records())
    assert [(r.id, r.user, r.text, r.label) for r in records] == [
        ("7", "12", "hi", "1"),
        ("8", "13", "ho", None),
    ]


def test_mixed_types_take_the_slow_way_to_the_same_end(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text(
        '{"id": 1, "text": "a"}\n{"id": "x", "text": "b", "user": 3}\n\n{"id": 2.5, "text": ""}\n'
    )
    assert [r.id for r in read(file).records()] == ["1", "x", "2.5"]


def test_spans_may_call_their_kind_label(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text(
        '{"text": "Ann", "spans": [{"start": 0, "end": 3, "label": "PER"}]}\n{"text": "b"}\n'
    )
    assert next(read(file).records()).spans == (Span(0, 3, "PER"),)


def test_ids_are_counted_where_none_are_given(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("one\n\ntwo\n  three  \n")
    records = list(read(tmp_path / "c.txt").records())
    assert [(r.id, r.text) for r in records] == [("0", "one"), ("1", "two"), ("2", "three")]


def test_csv_without_header_and_without_quotes(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text('3,"a title","some, text"\n')
    layout = Layout(columns={"text": "body"}, header=("label", "title", "body"))
    assert next(read(tmp_path / "n.csv", layout).records()).text == "some, text"
    (tmp_path / "n.tsv").write_text('sentence\tlabel\n"quoted" start\t1\n')
    layout = Layout(quoted=False)
    assert next(read(tmp_path / "n.tsv", layout).records()).text == '"quoted" start'


def test_other_encodings_are_named(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    assert next(read(tmp_path / "l.txt", Layout(encoding="latin-1")).records()).text == "café"
    (tmp_path / "u.jsonl").write_bytes('{"text": "hé"}\n'.encode("utf-16"))
    assert next(read(tmp_path / "u.jsonl", Layout(encoding="utf-16")).records()).text == "hé"
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbftext\nhello\n")
    assert next(read(tmp_path / "b.csv").records()).text == "hello"


CONLL = """-DOCSTART- -X- -X- O

Ann NNP B-NP B-PER
left VBD B-VP O

-DOCSTART- -X- -X- O

Bob NNP B-NP B-PER
"""


def test_conll_documents_are_users_and_sentences_records(tmp_path: Path) -> None:
    (tmp_path / "x.conll").write_text(CONLL)
    records = list(read(tmp_path / "x.conll").records())
    assert [(r.user, r.text, r.tags, r.pos) for r in records] == [
        ("doc-00001", "Ann left", ("B-PER", "O"), ("NNP", "VBD")),
        ("doc-00002", "Bob", ("B-PER",), ("NNP",)),
    ]


def test_hugging_face_objects_and_folders(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "sentence": datasets.Value("string"),
            "author": datasets.Value("int64"),
            "label": datasets.ClassLabel(names=["neg", "pos"]),
            "words": datasets.Sequence(datasets.Value("string")),
            "ner_tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"])),
        }
    )
    part = datasets.Dataset.from_dict(
        {
            "sentence": ["Ann left", "so did I"],
            "author": [1, 2],
            "label": [1, -1],
            "words": [["Ann", "left"], ["so", "did", "I"]],
            "ner_tags": [[1, 0], [0, 0, 0]],
        },
        features=features,
    )
    both = datasets.DatasetDict({"train": part, "validation": part.select([1])})
    both.save_to_disk(str(tmp_path / "saved"))
    for whole in (
        from_dataset(both, Layout(columns={})),
        read(tmp_path / "saved"),
    ):
        records = list(whole.records())
        assert [(r.user, r.label, r.tags, r.split) for r in records] == [
            ("1", "pos", ("B-PER", "O"), "train"),
            ("2", None, ("O", "O", "O"), "train"),
            ("2", None, ("O", "O", "O"), "valid"),
        ]
    part.to_parquet(str(tmp_path / "files" / "data" / "train-00000.parquet"))
    assert read(tmp_path / "files").splits() == ["train"]
    with pytest.raises(UsageError, match="not a data set"):
        from_dataset([1, 2])


def test_a_large_source_is_mapped_and_equal(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text("".join(json.dumps({"text": f"record {i}"}) + "\n" for i in range(70_000)))
    mapped = read(file, in_memory=0)
    assert mapped.digest() == read(file).digest()
    assert sum(b.num_rows for b in stream(file, Layout())) == 70_000


def bad_files(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """Name, file, and a part of the sentence that it must get."""

    def make(name: str, content: str | bytes) -> Path:
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    good = json.dumps({"id": "1", "user": "u", "text": SECRET})
    long = b"x" * (MAX_RECORD + 9)
    packed = gzip.compress(("".join([good, "\n"]) * 5000).encode())
    return {
        "missing": (tmp_path / "none.jsonl", "does not exist"),
        "unknown ending": (make("a.docx", SECRET), "--format"),
        "not json": (make("b.jsonl", f"{good}\n{{{SECRET}\n"), "line 2"),
        "array": (make("c.jsonl", f'["{SECRET}"]\n'), "array"),
        "text is a list": (make("d.jsonl", f'{good}\n{{"text": ["{SECRET}"]}}\n'), "line 2"),
        "text is a number": (make("d2.jsonl", f'{{"text": 5, "user": "{SECRET}"}}\n'), "line 1"),
        "no text": (make("e.jsonl", f'{{"body_": "{SECRET}"}}\n'), "--text"),
        "text missing later": (make("f.jsonl", f'{good}\n{{"id": "{SECRET}"}}\n'), "record 2"),
        "wrong encoding": (make("g.jsonl", b'{"text": "ok"}\n{"text": "caf\xe9"}\n'), "line 2"),
        "wrong encoding csv": (make("g.csv", b"text\nfine\ncaf\xe9\n"), "line 3"),
        "utf-16": (make("h.jsonl", good.encode("utf-16")), "line 1"),
        "nul byte": (make("i.jsonl", f'{good}\n{{"text": "a\0b"}}\n'), "line 2"),
        "escaped nul": (make("j.jsonl", f'{{"text": "{SECRET}\\u0000"}}\n'), "record 1"),
        "half surrogate": (make("k.jsonl", f'{{"text": "{SECRET}\\ud800"}}\n'), "line 1"),
        "ragged csv": (make("l.csv", f"user,text\na,{SECRET}\nb,{SECRET},{SECRET}\n"), "row 3"),
        "open quote": (make("m.csv", f'user,text\na,"{SECRET}\n'), "never closed"),
        "headerless csv": (make("n.csv", f"{SECRET},other\nx,y\n"), "--header"),
        "double header": (make("o.csv", "text,text\na,b\n"), "share a name"),
        "empty": (make("p.jsonl", ""), "empty"),
        "empty csv": (make("q.csv", ""), "empty"),
        "header only": (make("r.csv", "user,text\n"), "empty"),
        "blank": (make("s.txt", "\n \n"), "empty"),
        "duplicate ids": (make("t.jsonl", f"{good}\n{good}\n"), "records 1 and 2"),
        "null id": (make("t2.jsonl", f'{good}\n{{"text": "{SECRET}"}}\n'), "record 2"),
        "span outside": (
            make("u.jsonl", '{"text": "abc", "spans": [{"start": 1, "end": 9, "kind": "X"}]}\n'),
            "record 1",
        ),
        "span without kind": (
            make("u2.jsonl", '{"text": "abc", "spans": [{"start": 1, "end": 2}]}\n'),
            "a kind",
        ),
        "not parquet": (make("v.parquet", SECRET), "Parquet"),
        "cut parquet": (make("w.parquet", _cut_parquet(tmp_path)), "Parquet"),
        "parquet types": (_odd_parquet(tmp_path / "x.parquet"), "type"),
        "cut gzip": (make("y.jsonl.gz", packed[:-20]), "gzip"),
        "corrupt gzip": (make("z.jsonl.gz", packed[:20] + b"\xff" * 30 + packed[50:]), "gzip"),
        "long line": (make("big.jsonl", b'{"text": "' + long + b'"}\n'), "16 MiB"),
        "long row": (make("big.csv", b"text\n" + long + b"\n"), "16 MiB"),
        "ragged conll": (make("aa.conll", f"{SECRET} O\n{SECRET} X O\n"), "line 2"),
        "one column conll": (make("ab.conll", f"{SECRET}\n"), "line 1"),
        "deep json": (make("ac.jsonl", '{"text": ' + "[" * 100_000 + "\n"), "line 1"),
        "huge number": (make("ad.jsonl", '{"id": ' + "9" * 5000 + ', "text": "a"}\n'), "line 1"),
        "empty folder": ((tmp_path / "sub"), "no data set"),
    }  # fmt: skip


def _cut_parquet(tmp_path: Path) -> bytes:
    write(corpus(), tmp_path / "whole.parquet")
    return (tmp_path / "whole.parquet").read_bytes()[:-40]


def _odd_parquet(path: Path) -> Path:
    pa.parquet.write_table(pa.table({"text": pa.array([[1, 2]])}), path)
    return path


def test_every_bad_file_gets_one_sentence_and_no_text(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, (file, expected) in bad_files(tmp_path).items():
        with pytest.raises(TacitError) as caught:
            read(file)
        message = str(caught.value)
        assert expected in message, f"{name}: {message}"
        assert SECRET not in message, name
        assert "\n" not in message, name
        assert file.name in message, name
        # Arrow's and the decoder's own errors quote the data: they must not be chained on.
        assert caught.value.__cause__ is None, name
        assert caught.value.__suppress_context__ or caught.value.__context__ is None, name


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(_: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        write(corpus(), tmp_path / "c.jsonl", progress=stop)
    assert list(tmp_path.iterdir()) == []


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)


@settings(max_examples=150)
@given(st.lists(st.tuples(TEXT, TEXT, st.none() | TEXT), min_size=1, max_size=30))
def test_odd_records_survive_every_format(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str | None]]
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    # Whitespace-only and empty users mean "none" in a CSV cell, so only real ones are compared.
    whole = Corpus.from_records(
        {"id": str(i), "user": user or "nobody", "text": text, "label": label or None}
        for i, (user, text, label) in enumerate(rows)
    )
    wanted = [(r.id, r.user, r.text, r.label) for r in whole.records()]
    for name in ("c.jsonl", "c.parquet", "c.csv"):
        write(whole, folder / name)
        got = [(r.id, r.user, r.text, r.label) for r in read(folder / name).records()]
        assert got == wanted


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELD = st.sampled_from(["id", "user", "text", "label", "tokens", "tags", "spans", "split", "x"])


@settings(max_examples=700)
@given(st.lists(st.dictionaries(FIELD, JSON, max_size=6), min_size=1, max_size=4))
def test_odd_objects_are_read_or_refused_in_our_words(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]
) -> None:
    file = tmp_path_factory.getbasetemp() / "odd.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        whole = read(file)
        assert len(whole) == len(rows)
        list(whole.records())
    except TacitError as error:
        assert isinstance(error, DataError)  # noqa: PT017 - either outcome is right


@settings(max_examples=1000)
@given(
    st.binary(max_size=200),
    st.sampled_from(["o.jsonl", "o.csv", "o.tsv", "o.parquet", "o.conll", "o.txt"]),
)
def test_odd_bytes_are_read_or_refused_in_our_words(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    file = tmp_path_factory.getbasetemp() / name
    file.write_bytes(content)
    try:
        read(file)
    except TacitError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right


def test_a_column_that_is_not_there_is_named_beside_those_that_are(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("sender,body,folder\nann,Lunch at one?,inbox\n")
    with pytest.raises(DataError, match=r"Did you mean 'folder'\? It has 'sender', 'body', 'fol"):
        read(path, Layout(columns={"user": "sender", "label": "foldr"}))
    many = ",".join(["body", *(f"c{n}" for n in range(14))])
    path.write_text(f"{many}\n{many}\n")
    with pytest.raises(DataError, match=r"It has 'body', 'c0', .*, 'c10' and 3 more"):
        read(path, Layout(columns={"user": "sender"}))


def test_where_nothing_shows_that_there_is_a_header_no_line_of_it_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("ann,Lunch at one?,inbox\neve,Yes.,sent\n")
    with pytest.raises(DataError, match=r"it has 3 other column\(s\)") as refused:
        read(path, Layout(columns={"user": "sender", "text": "body"}))
    assert "Lunch" not in str(refused.value)
