"""Every loader on small files of its own format: what is read, and what is refused."""

import csv
import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from tacit import corpora
from tacit.corpus import Corpus
from tacit.errors import DataError, UsageError

# A word that stands in every fixture: no message may repeat it.
SECRET = "Quillfeather"


def conll_lines(documents: int) -> str:
    lines = []
    for number in range(documents):
        lines += ["-DOCSTART- -X- -X- O", ""]
        lines += [f"{SECRET} NNP B-NP B-PER", f"Jones{number} NNP I-NP I-PER"]
        lines += ["waits VBZ B-VP O", ". . O O", "", "Rain NN B-NP O", ""]
    return "\n".join(lines) + "\n"


def write_conll2003(folder: Path) -> None:
    for name, documents in (("train", 3), ("valid", 2), ("test", 1)):
        (folder / f"{name}.txt").write_text(conll_lines(documents), encoding="utf-8")


def write_ag_news(folder: Path) -> None:
    train = ["label,kind,text"]
    train += [f'{n % 4 + 1},titled,"{SECRET} says ""no"", number {n}"' for n in range(40)]
    (folder / "train_subset.csv").write_text("\n".join(train) + "\n", encoding="utf-8")
    test = [f'"{n % 4 + 1}","Title {n}","{SECRET}, in short"' for n in range(8)]
    (folder / "test.csv").write_text("\n".join(test) + "\n", encoding="utf-8")


def wiki_lines(articles: int) -> str:
    one = (
        f" \n = {SECRET} = \n \n It grows in gardens . \n = = Use = = \n \n Tea is made of it . \n"
    )
    # A formula may look like a title; it stands without blank lines around it.
    formula = " where \n = 1 <unk> and <unk> k = \n at most . \n"
    return (one + formula) * articles


def write_wikitext2(folder: Path) -> None:
    for name, articles in (("train", 3), ("valid", 2), ("test", 1)):
        (folder / f"{name}.txt").write_text(wiki_lines(articles), encoding="utf-8")


def write_sst2(folder: Path) -> None:
    for name, rows in (("train", 50), ("dev", 6)):
        lines = ["sentence\tlabel", *(f'a "{SECRET} of a film {n} \t{n % 2}' for n in range(rows))]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_qnli(folder: Path) -> None:
    labels = ("entailment", "not_entailment")
    lines = ["index\tquestion\tsentence\tlabel"]
    lines += [f"{n}\tWho is {SECRET}?\tNobody knows {n}.\t{labels[n % 2]}" for n in range(50)]
    (folder / "dev.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "test.tsv").write_text("index\tquestion\tsentence\n0\tWho?\tShe.\n")


def write_stsb(folder: Path) -> None:
    for name, rows in (("train", 20), ("dev", 5), ("test", 4)):
        lines = [
            f'main\tMSR\t2012\t{n:04d}\t{n % 6}.00\tA "{SECRET} sings.\tSomebody sings.'
            + ("\tsource\tlicence" if n % 3 == 0 else "")
            for n in range(rows)
        ]
        (folder / f"sts-{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


CONTRACT = f"""SUPPLY AGREEMENT

This agreement of May 3, 2011 is between {SECRET} Foods, Inc. ("Buyer") and Umbrel LLC.

12

This Agreement shall be governed by the laws of Oregon. {SECRET} Foods, Inc. agrees, and
UmbrelX does not.

Neither party may assign it,

even in part, to anybody else without consent.
"""


def write_cuad(folder: Path) -> None:
    contracts = [
        {"title": f"FIRM{n}_2011_Supply", "company": f"firm{n // 2}", "text": CONTRACT}
        for n in range(40)
    ]
    lines = "".join(json.dumps(c) + "\n" for c in contracts)
    (folder / "contracts.jsonl").write_text(lines, encoding="utf-8")
    header = "Filename,Parties,Parties-Answer,Agreement Date,Governing Law,Anti-Assignment"
    parties = f"['{SECRET} Foods, Inc.', 'Buyer', 'Umbrel LLC', 'Umbrel']"
    law = "['This Agreement shall be governed by the laws of Oregon.']"
    assign = "['Neither party may assign it,\\n\\neven in part<omitted>without consent.']"
    rows = [
        f"""firm{n}_2011_supply.PDF,"{parties}",x,"['May 3, 2011']","{law}","{assign}\""""
        for n in range(39)  # the last contract has no row
    ]
    (folder / "master_clauses.csv").write_text("\n".join([header, *rows]), encoding="utf-8")


def write_newsgroups20(folder: Path) -> None:
    for name, rows in (("train", 6), ("test", 3)):
        lines = [
            {
                "id": "100",
                "group": f"rec.g{n}",
                "author": f"u{n % 4}",
                "subject": "Re: it",
                "text": f"{SECRET} wrote:\n> caf\u00e9 {n}",
            }
            for n in range(rows)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


WRITERS = {
    "conll2003": write_conll2003,
    "ag_news": write_ag_news,
    "wikitext2": write_wikitext2,
    "sst2": write_sst2,
    "qnli": write_qnli,
    "stsb": write_stsb,
    "cuad": write_cuad,
    "newsgroups20": write_newsgroups20,
}
NAMES = list(WRITERS)


@pytest.fixture
def written(tmp_path: Path):
    """A function that writes a corpus into `tmp_path/name` and gives that folder."""

    def write(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        WRITERS[name](folder)
        return folder

    return write


def split_counts(corpus: Corpus) -> dict[str, tuple[int, int]]:
    """Records and users of each split."""
    parts = {split: corpus.only(split) for split in corpus.splits()}
    return {split: (len(part), len(part.users())) for split, part in parts.items()}


def refusal(name: str, folder: Path) -> str:
    """The message with which a corpus is refused; it must not repeat the text."""
    with pytest.raises(DataError) as caught:
        corpora.load(name, folder)
    error: BaseException | None = caught.value
    assert error is not None
    assert SECRET not in str(error)
    # What Python prints below "during handling of" must not quote it either.
    chained = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert chained is None
    return str(caught.value)


def test_every_corpus_is_known_and_tested():
    assert list(corpora.CORPORA) == NAMES
    assert all(corpus.summary for corpus in corpora.CORPORA.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_corpus_is_found_in_its_folder_or_below_its_parent(name, written):
    folder = written(name)
    own, below = corpora.load(name, folder), corpora.load(name, folder.parent)
    assert own.digest() == below.digest()
    assert own.name == name
    assert set(own.splits()) <= {"train", "valid", "test"}
    assert own.column("user").null_count == 0
    assert own.column("split").null_count == 0


@pytest.mark.parametrize("name", NAMES)
def test_gzip_reads_the_same(name, written):
    folder = written(name)
    plain = corpora.load(name, folder)
    for path in list(folder.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert corpora.load(name, folder).digest() == plain.digest()


@pytest.mark.parametrize("name", NAMES)
def test_windows_line_ends_and_a_byte_order_mark_read_the_same(name, written):
    folder = written(name)
    plain = corpora.load(name, folder)
    for path in list(folder.iterdir()):
        raw = path.read_bytes()
        if path.name != "master_clauses.csv":
            raw = raw.replace(b"\n", b"\r\n")
        path.write_bytes(b"\xef\xbb\xbf" + raw)
    assert corpora.load(name, folder).digest() == plain.digest()


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_repeats(name, written):
    folder = written(name)
    assert (
        corpora.load(name, folder, seed=3).digest() == corpora.load(name, folder, seed=3).digest()
    )


@pytest.mark.parametrize("name", ["ag_news", "sst2", "qnli", "stsb", "cuad"])
def test_another_seed_deals_otherwise(name, written):
    folder = written(name)
    assert (
        corpora.load(name, folder, seed=1).digest() != corpora.load(name, folder, seed=2).digest()
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_folder_names_the_files(name, tmp_path):
    message = refusal(name, tmp_path)
    assert any(part in message for part in (".txt", ".csv", ".tsv", ".jsonl"))
    assert name in message


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_folder_is_told(name, tmp_path):
    assert "does not exist" in refusal(name, tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "is a file" in refusal(name, tmp_path / "file")


FIRST_FILES = {
    "conll2003": "train.txt",
    "ag_news": "train_subset.csv",
    "wikitext2": "train.txt",
    "sst2": "train.tsv",
    "qnli": "dev.tsv",
    "stsb": "sts-train.csv",
    "cuad": "master_clauses.csv",
    "newsgroups20": "train.jsonl",
}


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_file_is_told(name, written):
    folder = written(name)
    (folder / FIRST_FILES[name]).write_bytes(b"")
    message = refusal(name, folder)
    assert FIRST_FILES[name] in message
    assert "empty" in message


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_encoding_is_told_with_its_line(name, written):
    folder = written(name)
    path = folder / FIRST_FILES[name]
    lines = path.read_bytes().split(b"\n")
    lines[3] = lines[3] + SECRET.encode() + b"\xff"
    path.write_bytes(b"\n".join(lines))
    assert f"{path.name}, line 4, is not utf-8" in refusal(name, folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_nul_byte_is_told_with_its_line(name, written):
    folder = written(name)
    path = folder / FIRST_FILES[name]
    path.write_bytes(path.read_bytes().replace(b"\n", b"\0\n", 1))
    assert f"{path.name}, line 1, has a NUL byte" in refusal(name, folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_gzip_is_told(name, written):
    folder = written(name)
    path = folder / FIRST_FILES[name]
    whole = gzip.compress(path.read_bytes())
    path.unlink()
    for broken in (whole[:-20], b"not gzip at all", b""):
        path.with_name(f"{path.name}.gz").write_bytes(broken)
        message = refusal(name, folder)
        assert "not a whole gzip file" in message or "empty" in message


BAD_LINES = [
    ("conll2003", "train.txt", f"{SECRET} NNP B-NP", 4, "4 columns"),
    ("conll2003", "train.txt", f"{SECRET} NNP B-NP PER", 4, "entity tag"),
    ("conll2003", "train.txt", f"{SECRET} NNP B-NP O", 1, "-DOCSTART-"),
    ("ag_news", "train_subset.csv", f"1,{SECRET}", 4, "2 columns where 3"),
    ("ag_news", "train_subset.csv", f"7,titled,{SECRET}", 4, "label is not 1, 2, 3 or 4"),
    ("ag_news", "train_subset.csv", f"{SECRET},x", 1, "a header names"),
    ("wikitext2", "train.txt", f" {SECRET} grows . ", 1, "no article title"),
    ("sst2", "train.tsv", f"{SECRET}", 4, "1 columns where 2"),
    ("sst2", "train.tsv", f"{SECRET}\t2", 4, "label is not 0 or 1"),
    ("sst2", "train.tsv", f"{SECRET}\tx", 1, "header does not name sentence, label"),
    ("qnli", "dev.tsv", f"3\t{SECRET}\tentailment", 4, "3 columns where 4"),
    ("qnli", "dev.tsv", f"3\t{SECRET}\tx\tmaybe", 4, "label is not"),
    ("stsb", "sts-train.csv", f"main\tMSR\t2012\t1\t{SECRET}", 4, "at least 7"),
    ("stsb", "sts-train.csv", f"main\tMSR\t2012\t1\t9\t{SECRET}\tx", 4, "from 0 to 5"),
    ("stsb", "sts-train.csv", f"main\tMSR\t2012\t1\t{SECRET}\tx\ty", 4, "from 0 to 5"),
    ("cuad", "master_clauses.csv", f"{SECRET},x", 4, "2 columns where 6"),
    ("cuad", "master_clauses.csv", f"{SECRET},[{SECRET}],,,,", 4, "list of quoted strings"),
    ("cuad", "master_clauses.csv", f"{SECRET},x", 1, "Filename and Parties"),
    ("cuad", "contracts.jsonl", f'{{"title": "{SECRET}"', 4, "JSON object"),
    ("cuad", "contracts.jsonl", f'{{"title": "{SECRET}", "text": 3}}', 4, "no string"),
    ("newsgroups20", "train.jsonl", f'["{SECRET}"]', 4, "JSON object"),
    ("newsgroups20", "train.jsonl", f'{{"text": "{SECRET}"}}', 4, "no string 'id'"),
]


@pytest.mark.parametrize(("name", "file", "line", "number", "fault"), BAD_LINES)
def test_a_malformed_line_is_told_with_its_number(name, file, line, number, fault, written):
    folder = written(name)
    path = folder / file
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[number - 1] = line
    path.write_text("\n".join(lines), encoding="utf-8")
    message = refusal(name, folder)
    assert f"{file}, line {number}: " in message
    assert fault in message


def test_an_open_quote_is_told(written):
    folder = written("ag_news")
    with (folder / "test.csv").open("a") as out:
        out.write(f'1,"{SECRET} never ends\n')
    assert "its quoting is broken" in refusal("ag_news", folder)


def test_half_a_surrogate_pair_is_told(written):
    folder = written("newsgroups20")
    post = {"id": "1", "group": "g", "author": "u", "text": f"{SECRET} \ud800"}
    (folder / "train.jsonl").write_text(json.dumps(post) + "\n")
    assert "train.jsonl" in refusal("newsgroups20", folder)


def test_an_unknown_name_and_a_negative_seed_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match="accepted: ag_news, conll2003"):
        corpora.load("conll", tmp_path)
    with pytest.raises(UsageError, match="seed=-1"):
        corpora.load("sst2", tmp_path, seed=-1)


def test_conll_has_documents_as_users_and_sentences_as_records(written):
    corpus = corpora.load("conll2003", written("conll2003"))
    assert split_counts(corpus) == {"train": (6, 3), "valid": (4, 2), "test": (2, 1)}
    record = next(corpus.records())
    assert (record.id, record.user) == ("train-00001", "train-doc-0001")
    assert record.text == f"{SECRET} Jones0 waits ."
    assert record.tokens == (SECRET, "Jones0", "waits", ".")
    assert record.tags == ("B-PER", "I-PER", "O", "O")
    assert record.pos == ("NNP", "NNP", "VBZ", ".")


def test_conll_reads_the_original_names_and_tags(written):
    folder = written("conll2003")
    for new, old in (("train", "train"), ("valid", "testa"), ("test", "testb")):
        path = folder / f"{new}.txt"
        text = path.read_text().replace("B-PER", "I-PER")
        path.unlink()
        (folder / f"eng.{old}").write_text(text)
    assert next(corpora.load("conll2003", folder).records()).tags == ("B-PER", "I-PER", "O", "O")


def test_ag_news_reads_all_three_forms(written):
    folder = written("ag_news")
    corpus = corpora.load("ag_news", folder)
    assert {s: n for s, (n, _) in split_counts(corpus).items()} == {"train": 40, "test": 8}
    train, test = corpus.only("train"), corpus.only("test")
    assert Counter(train.column("label").to_pylist()) == dict.fromkeys(
        ("World", "Sports", "Business", "Sci-Tech"), 10
    )
    assert train.column("text")[0].as_py() == f'{SECRET} says "no", number 0'
    assert test.column("text")[0].as_py() == f"Title 0 {SECRET}, in short"
    assert not set(train.users()) & set(test.users())
    # The full training file is taken before the subset.
    (folder / "train.csv").write_text('Class Index,Title,Description\n2,"A","b c"\n')
    (record,) = corpora.load("ag_news", folder).only("train").records()
    assert (record.text, record.label) == ("A b c", "Sports")


def test_wikitext_has_articles_as_users_and_lines_as_records(written):
    folder = written("wikitext2")
    corpus = corpora.load("wikitext2", folder)
    assert split_counts(corpus) == {"train": (21, 3), "valid": (14, 2), "test": (7, 1)}
    assert corpus.column("text")[0].as_py() == f"= {SECRET} ="
    assert corpus.column("user")[0].as_py() == "train-article-0001"
    (folder / "train.txt").unlink()
    without = corpora.load("wikitext2", folder)
    assert split_counts(without) == {"train": (14, 2), "test": (7, 1)}


def test_sst2_keeps_quotes_and_names_its_labels(written):
    corpus = corpora.load("sst2", written("sst2"))
    record = next(corpus.records())
    assert record.text == f'a "{SECRET} of a film 0'
    assert record.label == "negative"
    assert {s: n for s, (n, _) in split_counts(corpus).items()} == {"train": 50, "valid": 6}


def test_qnli_splits_dev_where_no_train_is_given(written):
    folder = written("qnli")
    corpus = corpora.load("qnli", folder)
    assert {s: n for s, (n, _) in split_counts(corpus).items()} == {"train": 40, "test": 10}
    pairs = corpus.column("pair").to_pylist()
    assert sorted(pairs) == sorted(f"Nobody knows {n}." for n in range(50))
    assert corpus.column("text")[0].as_py() == f"Who is {SECRET}?"
    (folder / "train.tsv").write_text(
        "index\tquestion\tsentence\tlabel\n0\tWhy?\tSo.\tentailment\n"
    )
    given = corpora.load("qnli", folder)
    assert {s: n for s, (n, _) in split_counts(given).items()} == {"train": 1, "valid": 50}


def test_stsb_ignores_further_columns_and_reads_the_glue_form(written):
    folder = written("stsb")
    corpus = corpora.load("stsb", folder)
    assert {s: n for s, (n, _) in split_counts(corpus).items()} == {
        "train": 20,
        "valid": 5,
        "test": 4,
    }
    record = next(corpus.records())
    assert (record.text, record.pair, record.label) == (
        f'A "{SECRET} sings.',
        "Somebody sings.",
        "0.00",
    )
    for path in folder.iterdir():
        path.unlink()
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("index\tsentence1\tsentence2\tscore\n0\ta\tb\t2.5\n")
    glue = corpora.load("stsb", folder)
    assert [(r.text, r.pair, r.label) for r in glue.records()] == [("a", "b", "2.5")] * 2


def test_cuad_marks_clauses_names_and_dates(written):
    corpus = corpora.load("cuad", written("cuad"))
    assert len(corpus.users()) == 20
    assert {s: users for s, (_, users) in split_counts(corpus).items()} == {
        "train": 16,
        "valid": 2,
        "test": 2,
    }
    records = [r for r in corpus.records() if r.id.startswith("contract-001-")]
    # The page number 12 has no letter and is no record.
    assert [r.label for r in records] == [
        None,
        None,
        "Governing Law",
        "Anti-Assignment",
        "Anti-Assignment",
    ]
    found = [[(r.text[s.start : s.end], s.kind) for s in r.spans or ()] for r in records]
    party = (f"{SECRET} Foods, Inc.", "ORG")
    # "Buyer" is a role, not a name; "UmbrelX" is another word.
    assert found == [[], [("May 3, 2011", "DATE"), party, ("Umbrel LLC", "ORG")], [party], [], []]
    last = [r for r in corpus.records() if r.id.startswith("contract-040-")]
    assert all(r.label is None and r.spans == () for r in last)


def test_cuad_reads_the_release_folder(written):
    folder = written("cuad")
    wanted = corpora.load("cuad", folder)
    texts = folder / "full_contract_txt"
    texts.mkdir()
    for n in range(40):
        (texts / f"FIRM{n:02d}_2011_Supply.txt").write_text(CONTRACT, encoding="utf-8")
    corpus = corpora.load("cuad", folder)
    assert len(corpus) == len(wanted)
    assert corpus.users()[0] == "firm00"


def test_cuad_takes_a_very_long_clause(written):
    folder, before = written("cuad"), csv.field_size_limit()
    clause = "It goes on and on. " * 20_000
    text = (folder / "master_clauses.csv").read_text() + f'\n"other.pdf",,,,"[\'{clause}\']",'
    (folder / "master_clauses.csv").write_text(text)
    assert len(corpora.load("cuad", folder).users()) == 20
    assert csv.field_size_limit() == before


def test_newsgroups_have_authors_as_users(written):
    corpus = corpora.load("newsgroups20", written("newsgroups20"))
    assert split_counts(corpus) == {"train": (6, 4), "test": (3, 3)}
    record = next(corpus.records())
    assert (record.id, record.user, record.label) == ("train-rec.g0-100", "u0", "rec.g0")
    assert record.text == f"{SECRET} wrote:\n> café 0"


def test_newsgroups_read_the_release_folders(tmp_path):
    for split, numbers in (("train", (1, 2)), ("test", (3,))):
        group = tmp_path / f"20news-bydate-{split}" / "sci.tea"
        group.mkdir(parents=True)
        for n in numbers:
            post = f"From: Ann.{n % 2}@EXAMPLE.org (Ann)\nSubject: it\n\ncaf\u00e9 {n}\n"
            (group / str(n)).write_text(post, encoding="latin-1")
    corpus = corpora.load("newsgroups20", tmp_path)
    assert [(r.id, r.user, r.text) for r in corpus.records()] == [
        ("train-sci.tea-1", "u00001", "café 1"),
        ("train-sci.tea-2", "u00002", "café 2"),
        ("test-sci.tea-3", "u00001", "café 3"),
    ]
