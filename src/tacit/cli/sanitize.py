"""`tacit sanitize`: text changed under local privacy, with its certificate."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from rich.markup import escape

from tacit.cli.common import (
    named_corpus,
    names_corpus,
    new_corpus_file,
    out,
    print_json,
    progress,
    say,
    simple_table,
)
from tacit.cli.options import AsJson, OnRay, Options, Overwrite, gathers
from tacit.errors import UsageError
from tacit.files import refuse_overwrite
from tacit.workers import Workers

if TYPE_CHECKING:
    from tacit.sanitization import Written

METHODS_HELP = (
    "`santext`, `santext+`, `fbdd` or `random` (metric local differential privacy); `redact`, "
    "`mask` or `pseudonym` (on mentions; these promise nothing); or one that a package adds."
)

Out = Annotated[
    Path | None,
    typer.Option(
        "-o", "--out", help="File to write: .jsonl, .csv, .tsv (also .gz), .parquet, .txt."
    ),
]
Method = Annotated[str, typer.Option(help=METHODS_HELP)]
EpsilonPerDistance = Annotated[
    str | None,
    typer.Option(help="The papers' epsilon; several with commas for --profile."),
]
ReplacePlainRate = Annotated[
    float | None, typer.Option(help="santext+: how often a plain word is replaced (0.3).")
]
SensitiveShare = Annotated[
    float | None,
    typer.Option(help="santext+: this share of the vocabulary, the rarest, is sensitive (0.9)."),
]
SensitiveWords = Annotated[
    Path | None, typer.Option(help="santext+: a public list of sensitive words, one a line.")
]
SensitiveIn = Annotated[
    Path | None,
    typer.Option(help="santext+: a public text; what the detectors find there is sensitive."),
]
Frequencies = Annotated[
    Path | None,
    typer.Option(help="A public frequency list (word, tab, count) for --sensitive-share."),
]
Embeddings = Annotated[
    str,
    typer.Option(
        help="`own`, .npz, GloVe/word2vec/fastText .txt or .vec, the folder of a model, or "
        "`all-minilm-l6-v2` if that package is installed."
    ),
]
VocabularyList = Annotated[
    Path | None, typer.Option(help="A public list of words: only these of the embeddings.")
]
VocabularyFromCorpus = Annotated[
    bool,
    typer.Option(
        "--vocabulary-from-corpus",
        help="Only words that occur in the private text, as the paper does: a leak, so "
        "that nothing is promised.",
    ),
]
Unknown = Annotated[
    str,
    typer.Option(help="Words outside the vocabulary: `random`, `drop`, or `keep` (unprotected)."),
]
With = Annotated[str, typer.Option("--with", help="Detectors for mentions, as in `tacit detect`.")]
Mentions = Annotated[
    Path | None, typer.Option(help="Mentions that `tacit detect` wrote, instead of --with.")
]
Kinds = Annotated[str, typer.Option(help="Only mentions of these kinds.")]
SameWithin = Annotated[
    str,
    typer.Option(
        help="pseudonym: the same invented name within a `record`, a `user` or the `corpus`; each "
        "tells more of who is named together."
    ),
]
Drop = Annotated[str, typer.Option(help="Columns to leave out, comma-separated.")]
Profile = Annotated[
    bool, typer.Option("--profile", help="Show what each epsilon does; write no text.")
]
Plot = Annotated[Path | None, typer.Option(help="With --profile: a figure (.png, .svg, .html).")]
Samples = Annotated[
    int, typer.Option(min=0, help="With --profile: how many texts to show side by side.")
]
FixedSeed = Annotated[
    int | None,
    typer.Option(min=0, help="Experiment mode: a fixed seed. The result is not for release."),
]
Threads = Annotated[
    int,
    typer.Option(min=1, help="Threads, or processes with --ray; does not change the result."),
]


_OPTIONS: Options = {
    "to": (Out, None),
    "method": (Method, "santext"),
    "epsilon_per_distance": (EpsilonPerDistance, None),
    "replace_plain_rate": (ReplacePlainRate, None),
    "sensitive_share": (SensitiveShare, None),
    "sensitive_words": (SensitiveWords, None),
    "sensitive_in": (SensitiveIn, None),
    "frequencies": (Frequencies, None),
    "embeddings": (Embeddings, "own"),
    "vocabulary": (VocabularyList, None),
    "vocabulary_from_corpus": (VocabularyFromCorpus, False),
    "unknown": (Unknown, "random"),
    "using": (With, "patterns,lists,names"),
    "mentions": (Mentions, None),
    "kinds": (Kinds, ""),
    "same_within": (SameWithin, "record"),
    "drop": (Drop, ""),
    "profile": (Profile, False),
    "plot": (Plot, None),
    "samples": (Samples, 3),
    "seed": (FixedSeed, None),
    "workers": (Threads, 2),
    "ray": (OnRay, None),
    "as_json": (AsJson, False),
    "overwrite": (Overwrite, False),
}


@names_corpus
@gathers("asked", _OPTIONS, SimpleNamespace)
def sanitize(corpus: dict[str, Any], asked: SimpleNamespace) -> None:
    """Replace the words of a corpus under local differential privacy, and certify the result.

    Writes the corpus, and beside it a folder with ledger and certificate (`tacit verify`). With
    `--profile`: how often words stay and how far they spread, for each epsilon.

    Examples: `tacit sanitize mail.jsonl --epsilon-per-distance 2 -o out.jsonl` ·
    `tacit sanitize mail.jsonl --method santext+ --epsilon-per-distance 2 --sensitive-words
    names.txt -o out.jsonl` · `tacit sanitize mail.jsonl --profile --epsilon-per-distance 1,2,3`
    """
    from tacit.sanitization import MECHANISMS, MentionMechanism

    asked.corpus = corpus
    if asked.profile == (asked.to is not None):
        raise UsageError("Give -o FILE to write a corpus, or --profile to look at epsilons.")
    if asked.plot is not None and not asked.profile:
        raise UsageError("--plot goes with --profile.")
    if asked.ray is not None and asked.profile:
        raise UsageError("--ray is for writing a corpus; a profile looks at a few words.")
    asked.shared, asked.threads = Workers(), asked.workers
    if asked.ray:
        asked.shared, asked.threads = Workers(asked.workers, asked.ray), 1
    asked.dropped = _dropped(asked.drop)
    if asked.to is not None:
        _new_file(asked.to, asked.overwrite)
    if issubclass(MECHANISMS[asked.method], MentionMechanism):
        _replace_mentions(asked)
    else:
        _replace_words(asked)


def _replace_mentions(asked: SimpleNamespace) -> None:
    from tacit.detection.kinds import kind_of
    from tacit.detection.mentions import read_mentions
    from tacit.sanitization.operators import FromDetectors, FromMentions, Replacer, told_by

    if asked.profile or asked.epsilon_per_distance is not None:
        raise UsageError(f"method={asked.method} has no epsilon: it promises nothing.")
    _refuse_unused(asked, "vocabulary", "vocabulary_from_corpus", "frequencies", "sensitive_words",
                   "sensitive_in", "sensitive_share", "replace_plain_rate")  # fmt: skip
    if asked.unknown != "random":
        raise UsageError(f"--unknown does not go with --method {asked.method}.")
    wanted = [kind_of(kind) for kind in asked.kinds.split(",")] if asked.kinds else None
    finder: Any
    if asked.mentions is not None:
        found = read_mentions(asked.mentions, named_corpus(**asked.corpus))
        finder = FromMentions(found, wanted)
        context = {"detectors": f"mentions as in {asked.mentions.name}"}
    else:
        finder, context = FromDetectors(asked.using, wanted), {"detectors": asked.using}
    if asked.kinds:
        context["kinds"] = asked.kinds
    work = Replacer(asked.method, finder, within=asked.same_within, seed=asked.seed)
    if asked.method == "pseudonym":
        context |= told_by(asked.same_within)
    done = _write(asked, work, context=context)
    if done is not None:
        seen = done.counted
        say(f"{seen.texts:,} texts, {seen.words:,} mentions replaced (exact: keep inside)")
        _say_files(asked, done)


def _replace_words(asked: SimpleNamespace) -> None:
    from tacit.sanitization import Recipe, Sanitizer, open_embeddings, open_sanitizer

    _refuse_unused(asked, "mentions", "kinds")
    epsilons = _numbers(asked.epsilon_per_distance)
    whole = open_embeddings(asked.embeddings)
    public = _compared(asked, whole)
    embedding, leaks = _vocabulary(asked, whole)
    if len(epsilons) > 1 and not asked.profile:
        raise UsageError("Several epsilons go with --profile; give one to write a corpus.")
    if asked.profile and not epsilons:
        raise UsageError("--profile needs --epsilon-per-distance with one or more values.")
    recipes = [
        Recipe(asked.method, epsilon, asked.replace_plain_rate, asked.unknown)
        for epsilon in (epsilons or (None,))
    ]
    how = {"seed": asked.seed, "workers": asked.threads}
    first = open_sanitizer(
        recipes[0], embedding, **how, share=asked.sensitive_share, frequencies=asked.frequencies,
        words=asked.sensitive_words, found_in=asked.sensitive_in, using=asked.using,
    )  # fmt: skip
    if asked.profile:
        others = [Sanitizer(embedding, recipe, first.sensitive, **how) for recipe in recipes[1:]]
        _profile(asked, [first, *others], epsilons)
        return
    done = _write(asked, first, leaks=leaks, public=public)
    if done is None:
        return
    seen = done.counted
    share = seen.unchanged / max(1, seen.words)
    say(
        f"{seen.texts:,} texts, {seen.words:,} words, {share:.1%} unchanged, "
        f"{seen.unknown:,} unknown ({asked.unknown}) - exact figures: keep inside",
    )
    if asked.unknown == "keep" and seen.unknown:
        say(f"{seen.unknown:,} unknown words were kept as they stand: they are unprotected.")
    _say_files(asked, done)


def _refuse_unused(asked: SimpleNamespace, *options: str) -> None:
    """Refuse options that the method does not read: whoever gave one expects it to matter."""
    for name in options:
        if getattr(asked, name) not in (None, False, ""):
            said = name.replace("_", "-")
            raise UsageError(f"--{said} does not go with --method {asked.method}.")


def _compared(asked: SimpleNamespace, whole: Any) -> list[Any]:
    """The public inputs that are files, each compared with the private text."""
    from tacit.sanitization.public_inputs import PublicInputs

    inputs = PublicInputs(lambda: _texts(asked.corpus), Path(asked.corpus["source"]))
    names = ("vocabulary", "frequencies", "sensitive_words", "sensitive_in")
    files = {name: path for name in names if (path := getattr(asked, name)) is not None}
    return [
        inputs.vectors(asked.embeddings, whole),
        *(inputs.file(name, path) for name, path in files.items()),
    ]


def _texts(corpus: dict[str, Any]) -> Iterator[str]:
    """Every private text, second texts of pairs included."""
    for batch in _batches(corpus):
        for column in sorted({"text", "pair"} & set(batch.schema.names)):
            yield from (text for text in batch.column(column).to_pylist() if text)


def _numbers(text: str | None) -> list[float]:
    try:
        return [float(part) for part in (text or "").split(",") if part]
    except ValueError:
        raise UsageError(
            f"--epsilon-per-distance {text}: give a number, or several with commas between."
        ) from None


def _dropped(names: str) -> tuple[str, ...]:
    from tacit.sanitization.streaming import PASSED_ON

    accepted = [name for name in PASSED_ON if name != "text"]
    wanted = tuple(filter(None, names.split(",")))
    for name in wanted:
        if name not in accepted:
            raise UsageError(f"--drop {name}: accepted: {', '.join(accepted)}.")
    return wanted


def _new_file(to: Path, overwrite: bool) -> None:
    from tacit.sanitization import certificate_folder

    if Path(to.name.removesuffix(".gz")).suffix == ".txt":
        refuse_overwrite(to, overwrite=overwrite)
    else:
        new_corpus_file(to, overwrite=overwrite)
    if certificate_folder(to).exists() and not overwrite:
        raise UsageError(f"{certificate_folder(to)} exists; choose another name, or --overwrite.")


_SOURCE = ("source", "data", "split")


def _batches(corpus: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """The records of the corpus that the options name, streamed where it is a file."""
    from tacit import corpora
    from tacit.cli.common import layout_of
    from tacit.corpus.reading import stream

    source = Path(corpus["source"])
    if (
        corpora.is_known(corpus["source"])
        or corpus["split"] not in (None, "all")
        or source.is_dir()
    ):
        return iter(named_corpus(**corpus).table.to_batches())
    layout = {name: value for name, value in corpus.items() if name not in _SOURCE}
    return stream(source, layout_of(**layout))


def _vocabulary(asked: SimpleNamespace, embedding: Any) -> tuple[Any, list[str]]:
    from tacit.privacy.certificates.local_wording import VOCABULARY_LEAK
    from tacit.sanitization.words import Words, read_word_list

    listed, counted = asked.vocabulary, asked.vocabulary_from_corpus
    if listed is not None and counted:
        raise UsageError("Give --vocabulary or --vocabulary-from-corpus, not both.")
    if listed is not None:
        return embedding.only(read_word_list(listed), listed.name), []
    if not counted:
        return embedding, []
    units = embedding.pieces or Words(embedding.places)
    seen: set[int] = set()
    for text in _texts(asked.corpus):
        seen.update(units.encode(text)[0])
    words = [embedding.words[place] for place in sorted(seen) if place >= 0]
    say("Leak: the vocabulary is the set of words of the private text; nothing is promised.")
    return embedding.only(words, "the corpus", counted=True), [VOCABULARY_LEAK]


def _write(asked: SimpleNamespace, work: Any, **about: Any) -> "Written | None":
    """The corpus and its certificate, written; None where all is said as JSON already."""
    from tacit.sanitization import sanitize_file

    with progress("Sanitizing", None) as advance:
        done = sanitize_file(
            _batches(asked.corpus), asked.to, work, drop=asked.dropped, overwrite=asked.overwrite,
            progress=advance, workers=asked.shared, **about,
        )  # fmt: skip
    c = done.certificate
    if asked.as_json:
        names = ("notion", "standing", "epsilon_per_distance", "epsilon_0")
        files = {"file": str(done.file), "certificate": str(done.folder)}
        found = {name: getattr(c, name) for name in names}
        print_json({**files, **found, "not_private": vars(done.counted)})
        return None
    out.print(c.sentence, markup=False)
    if c.reach:
        out.print()
        _print_reach(c)
    return done


def _say_files(asked: SimpleNamespace, done: "Written") -> None:
    if asked.seed is not None:
        say("Not for release: the randomness came from a fixed seed.", style="bold")
    say(f"corpus: {done.file}")
    say(f"certificate: {done.folder} (check it with: tacit verify {done.folder})")


def _print_reach(certificate: Any) -> None:
    from tacit.privacy.certificates.explanation import a_word
    from tacit.privacy.rounding import up

    table = simple_table(
        f"{a_word(certificate)} and", "distance", "epsilon, one word", "epsilon, ten such words"
    )
    for name, reach in certificate.reach.items():
        table.add_row(
            name,
            up(reach.distance["median"]),
            up(reach.epsilon["median"]),
            up(reach.texts["10"]),
        )
    out.print(table)


def _profile(asked: SimpleNamespace, works: list[Any], epsilons: list[float]) -> None:
    from tacit.sanitization.profiling import as_json as rows
    from tacit.sanitization.profiling import plot_profile, profile

    plot = asked.plot
    if plot is not None:
        from tacit.reports.plots import format_of

        format_of(plot)
        refuse_overwrite(plot, overwrite=asked.overwrite)
    with progress("Profiling", works[0].space.width) as advance:
        found = profile(works[0], epsilons, progress=advance)
    if plot is not None:
        plot_profile(found, plot, f"What epsilon does (embeddings: {works[0].embedding.name})")
    texts = _first_texts(asked.corpus, asked.samples)
    shown = [
        {"text": text, **{f"{e:g}": w([f"text\0{n}"], [text])[0][0]
                          for e, w in zip(epsilons, works, strict=True)}}
        for n, text in enumerate(texts)
    ]  # fmt: skip
    if asked.as_json:
        print_json({"profile": rows(found), "samples_not_private": shown})
        return
    _print_profile(found)
    if shown:
        say("\nSamples (the first line of each is private text: keep them inside)", style="dim")
    for sample in shown:
        for name, text in sample.items():
            label = "original" if name == "text" else f"epsilon {name}"
            out.print(f"[bold]{label:>12}[/bold]  {escape(text)}")
        out.print()
    if plot is not None:
        say(f"figure: {plot}")


def _print_profile(found: list[Any]) -> None:
    first = found[0]
    out.print(f"Over {len(first.stays):,} words: 10 %, median and 90 % of the vocabulary")
    table = simple_table("epsilon per distance", *first.quantiles())
    for p in found:
        cells = [
            " ".join(_short(values[q]) for q in ("10%", "50%", "90%"))
            for values in p.quantiles().values()
        ]
        table.add_row(f"{p.epsilon_per_distance:g}", *cells)
    out.print(table)


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _first_texts(corpus: dict[str, Any], count: int) -> list[str]:
    """A few texts that fit a line, from the beginning of the corpus."""
    texts = (text for batch in _batches(corpus) for text in batch.column("text").to_pylist())
    fitting = (text for text in texts if text and len(text.split()) >= 4 and len(text) <= 160)
    return list(islice(fitting, count))
