"""What a run begins from that is called public: text, weights, tokenizers, labels.

Each is compared with the private text where it can be, and named with its digest; that it owes
nothing to the private text is an assumption that the certificate states.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pyarrow as pa
from safetensors import SafetensorError, safe_open

from tacit.corpora import open_corpus
from tacit.corpora.treebank import as_treebank
from tacit.corpus import Corpus
from tacit.corpus.overlap import (
    Pieces,
    read_pieces,
    require_independent,
    require_other_words,
    texts_of,
)
from tacit.errors import DataError, PrivacyRefused
from tacit.files import require_file
from tacit.packaged_models import (
    PACKAGES,
    START_PREFIX,
    hub_snapshot,
    located,
    tokenizer_of_vectors,
)
from tacit.privacy.certificates.manifest import file_digest
from tacit.privacy.certificates.scope import PublicInput
from tacit.training.data.starts import read_start, start_pieces
from tacit.training.models import tokens, word_vectors
from tacit.training.models.weights import MARK
from tacit.training.settings import Names, Run, TextStyle, TextUnit, each

GENERATED = "generated"
"""The name of the public text that comes with the package."""


_SENTENCE_END = re.compile(
    r"""(?<=[.!?])["'\u2019\u201d)\]]*\s+(?=["'\u2018\u201c(\[]*[^\W_a-z])|[\r\n]+"""
)


def sentences(text: str) -> list[str]:
    """A text cut at its lines, and after full stops that a capital or a number follows.

    >>> sentences("It rained. We stayed, i.e. slept.\\nThen it stopped .")
    ['It rained.', 'We stayed, i.e. slept.', 'Then it stopped .']
    """
    return [part.strip() for part in _SENTENCE_END.split(text) if part.strip()]


def public_corpus(
    names: Names, data: str | None, unit: TextUnit = "record", style: TextStyle = "as it is"
) -> Corpus:
    """Public text, as records or as their sentences: that of one name, or of several together.

    Several share the columns that all of them have, and their records are numbered anew.
    """
    parts = [_public_part(name, data) for name in each(names)]
    if style == "treebank":
        parts = [_rewritten(part) for part in parts]
    if len(parts) == 1 and unit == "record":
        return parts[0]
    if unit == "sentence":
        texts = (text for part in parts for text in texts_of(part))
        table = pa.table({"text": [one for text in texts for one in sentences(text)]})
    else:
        own = {"id", "user", "split"}
        kept = [c for c in parts[0].columns if c not in own and all(c in p.columns for p in parts)]
        table = pa.concat_tables([part.table.select(kept) for part in parts])
    numbers = pa.array([str(number) for number in range(len(table))])
    return Corpus(table.append_column("id", numbers), name=" and ".join(each(names)))


def _rewritten(part: Corpus) -> Corpus:
    """The same records, written as treebanks write text; a text that was nothing else is gone."""
    texts = [as_treebank(text) for text in part.column("text").to_pylist()]
    at = part.table.column_names.index("text")
    table = part.table.set_column(at, part.table.schema.field("text"), pa.array(texts))
    return Corpus(table, name=part.name).take([n for n, text in enumerate(texts) if text])


def _public_part(name: str, data: str | None) -> Corpus:
    """A public text: a file, a known corpus, or what the package generates."""
    if name == GENERATED:
        texts = enumerate(tokens.public_texts())
        return Corpus.from_records({"id": str(n), "text": text} for n, text in texts)
    return open_corpus(name, data)


def shown_name(path: str) -> str:
    """The name of a file as it may stand in a certificate: no mark-up, one line.

    >>> shown_name("texts/wiki*2*.txt")
    'wiki_2_.txt'
    """
    return re.sub(r"[^\w .,()+@=-]", "_", Path(path).name)


def shown_names(names: Names) -> str:
    """The names of one or several files, as they may stand in a certificate."""
    return ", ".join(shown_name(name) for name in each(names))


def public_inputs(run: Run, private: Corpus | None) -> tuple[PublicInput, ...]:
    """Everything a run calls public, each compared with the private text if that is at hand.

    Refuses what is the private text, or shares too much with it, and weights that a run of ours
    made unless that run is continued.
    """
    found: list[PublicInput] = []

    @cache
    def pieces() -> Pieces:
        assert private is not None
        return read_pieces(private)

    for what, name in _public_texts(run):
        if name == GENERATED:
            found.append(PublicInput(what=what, name="text that tacit generates"))
            continue
        corpus = public_corpus(name, run.data)
        digest = hashlib.sha256(corpus.digest().encode()).hexdigest()
        checked = "not compared: the private text lies elsewhere"
        if private is not None:
            files = (Path(run.corpus), Path(name))
            seen = require_independent(pieces(), corpus, what=f"{what} {name}", files=files)
            digest = seen.digest
            checked = seen.checked
        found.append(PublicInput(what=what, name=shown_name(name), sha256=digest, checked=checked))
    found += base_weights(run, pieces if private is not None else None)
    found += _word_vectors(run, pieces if private is not None else None)
    found += _tokenizer(run, pieces if private is not None else None)
    return tuple(found)


def _public_texts(run: Run) -> Iterator[tuple[str, str]]:
    own_tokenizer = run.tokenizer.kind != "folder" and not run.model.pretrained
    if own_tokenizer and (run.tokenizer.kind == "bpe" or run.tokenizer.public_text):
        for name in each(run.tokenizer.public_text or GENERATED):
            yield "the tokenizer's text", name
    elif run.model.trained_rows is not None and run.pretrain is None:
        for name in each(run.tokenizer.public_text or GENERATED):
            yield "the text in which tokens are counted", name
    if run.pretrain is not None:
        for name in each(run.pretrain.corpus):
            yield "the text of the public start", name
    if run.model.kind == "states":
        yield "the text of the adapter's directions", run.model.adapter_text or GENERATED
    if (public := getattr(run.options, "public_text", None)) is not None:
        yield "the text of the covariance", str(public)


def _word_vectors(run: Run, private: Callable[[], Pieces] | None) -> Iterator[PublicInput]:
    """The word vectors that a new model begins with; those of a package are not compared."""
    given = run.model.embeddings
    if given is None:
        return
    found = word_vectors.open_vectors(given, run.data)
    checked = None
    if private is not None and found.pieces is None:
        checked = require_other_words(private(), found.words, what=f"model.embeddings {given}")
    yield PublicInput(
        what="the word vectors", name=shown_name(found.name), sha256=found.whole, checked=checked
    )


def base_weights(run: Run, private: Callable[[], Pieces] | None = None) -> Iterator[PublicInput]:
    """The weights that a run begins with; those of a run that is continued speak for themselves."""
    if run.model.pretrained and not run.model.carry_ledger:
        where = str(run.model.folder)
        way_out = "say model.carry_ledger=true to continue it"
        yield weights_input(where, f"model.folder={where}", way_out, private)


def weights_input(
    where: str, said: str, way_out: str, private: Callable[[], Pieces] | None
) -> PublicInput:
    """Weights that are called public, under the name that a setting gives them (`said`).

    Those that a run of ours made are refused, with a way out. The text that a public start read is
    compared with the private text.
    """
    place = located(where)
    folder = place if place.is_dir() else place.parent
    if (folder / "ledger.jsonl").exists():
        raise PrivacyRefused(
            f"{said} is the model of a run, and what that run released is part of this one's "
            f"price; {way_out}, or give weights that no private text went into."
        )
    files = [place] if place.is_file() else sorted(folder.glob("*.safetensors"))
    # Where there are no weights to speak of, loading refuses with a better reason.
    for file in (*files, folder / "config.json") if files else ():
        if made_by_a_run(file):
            raise PrivacyRefused(
                f"{file.name} in {said} was made by a run of tacit whose ledger does not exist; "
                f"put the whole folder back and {way_out}."
            )
    name, checked = package_or_folder(where, place), None
    start = read_start(folder)
    if start is not None:
        name += f", which read {shown_names(start.corpus)}"
        if private is not None:
            what = f"the text of {said}"
            checked = require_independent(private(), start_pieces(folder), what=what).checked
    return PublicInput(
        what="the base weights", name=name, sha256=_joint_digest(files), checked=checked
    )


def _tokenizer(run: Run, private: Callable[[], Pieces] | None) -> Iterator[PublicInput]:
    folder = run.tokenizer.folder
    if folder is None and run.model.pretrained and not run.model.carry_ledger:
        folder = run.model.folder
    if folder is None:
        return
    place = located(folder)
    own = tokenizer_of_vectors(place)
    place = place if place.is_dir() else place.parent
    files = [f for f in (place / "tokenizer.json", place / "vocab.txt", place / "vocab.json", own)
             if f.is_file()]  # fmt: skip
    name = package_or_folder(folder, place)
    loaded = tokens.load_tokenizer(folder)
    if tokens.counted(loaded) is not None:
        return  # a leak, and nothing public
    words = tokens.whole_words(loaded)
    checked = None
    if words and private is not None:
        checked = require_other_words(private(), words, what=f"the vocabulary of {folder}")
    yield PublicInput(what="the tokenizer", name=name, sha256=_joint_digest(files), checked=checked)


def package_or_folder(given: str, place: Path) -> str:
    """What a certificate calls a model: a start, a folder, or a package with its version."""
    if given.startswith(START_PREFIX):
        return f"public start {place.name}"
    if Path(given).exists():
        return f"folder {shown_name(str(place))}"
    if hub_snapshot(given) is not None:
        return f"{given} of the Hugging Face cache"
    package = PACKAGES.get(given.lower(), given)
    return f"package {package} {metadata.version(package)}"


def _joint_digest(files: list[Path]) -> str | None:
    """One file's own digest, or one digest for several."""
    if len(files) == 1:
        return file_digest(files[0])
    lines = "".join(f"{file_digest(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest() if files else None


def made_by_a_run(path: Path) -> bool:
    """Whether weights, or the configuration beside them, bear the mark of a run of ours."""
    if path.name == "config.json":
        try:
            return MARK in json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError):
            return False
    if path.suffix != ".safetensors":
        return False
    try:
        with safe_open(path, framework="np") as file:
            return MARK in (file.metadata() or {})
    except (SafetensorError, OSError, ValueError):
        return False


def declared_labels(run: Run) -> tuple[str, ...] | None:
    """The labels that a run declares as public; None where it declares none."""
    if run.labels is None or isinstance(run.labels, tuple):
        return run.labels
    if run.labels == "pretrained":
        return _pretrained_labels(located(str(run.model.folder)))
    path = Path(run.labels)
    try:
        lines = require_file(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8; a file of labels has one a line.") from None
    return tuple(line.strip() for line in lines if line.strip())


def _pretrained_labels(folder: Path) -> tuple[str, ...]:
    from transformers import AutoConfig

    try:
        names = AutoConfig.from_pretrained(folder, local_files_only=True).id2label or {}
    except (OSError, ValueError):
        names = {}
    labels = tuple(str(names[number]) for number in sorted(names))
    if not labels or all(label.startswith("LABEL_") for label in labels):
        raise DataError(
            f"labels=pretrained: {folder.name} names no classes of its own; give labels as a list."
        )
    return labels


def label_input(run: Run, labels: tuple[str, ...]) -> PublicInput:
    """Declared labels, as something that is said to be public."""
    origin = "of the pretrained head" if run.labels == "pretrained" else "as declared"
    digest = hashlib.sha256("\n".join(labels).encode()).hexdigest()
    return PublicInput(what="the set of labels", name=f"{len(labels)} {origin}", sha256=digest)
