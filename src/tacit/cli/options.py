"""Options that several commands share, and how a group of them becomes one argument."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from tacit.errors import UsageError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of whatever is drawn.")]
AtOnce = Annotated[
    int, typer.Option("--workers", min=1, help="Processes; does not change the result.")
]
OnRay = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Let the workers be processes of this Ray cluster; `local` begins one here.",
    ),
]
Kinds = Annotated[str, typer.Option(help="Only these kinds, comma-separated.")]
PageRecords = Annotated[int, typer.Option(min=0, help="Records on the page; 0 for no page.")]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run.")]
Reference = Annotated[
    Path | None, typer.Option(help="Folder of a model that saw none of the text.")
]
To = Annotated[Path | None, typer.Option("-o", "--out", help="Folder for the run.")]
CorpusOut = Annotated[
    Path, typer.Option("-o", "--out", help="File to write: .jsonl, .csv, .tsv, .parquet.")
]
Resume = Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")]

Options: TypeAlias = Mapping[str, tuple[Any, Any]]
"""By name: the annotation of an option, and its default."""

CORPUS: Options = {
    "source": (Annotated[str, typer.Argument(
        metavar="CORPUS",
        help="A file (JSONL, CSV, TSV, Parquet, CoNLL, text; plain or gzip), a Hugging Face data "
        "set folder, or the name of a known corpus (see `tacit corpus list`).",
    )], inspect.Parameter.empty),
    "data": (Annotated[Path | None, typer.Option(
        "--data", help="Folder that holds the known corpora.", envvar="TACIT_DATA",
    )], None),
    "split": (Annotated[str | None, typer.Option(
        help="Only this split; `all` for all (a known corpus gives `train`)."
    )], None),
    "format": (Annotated[str | None, typer.Option(
        help="jsonl, csv, tsv, parquet, conll or text, where the ending misleads."
    )], None),
    "id": (Annotated[str | None, typer.Option("--id", help="Source column of the record id.")],
           None),
    "user": (Annotated[str | None, typer.Option("--user", help="Source column of the user.")],
             None),
    "text": (Annotated[str | None, typer.Option("--text", help="Source column of the text.")],
             None),
    "label": (Annotated[str | None, typer.Option("--label", help="Source column of the label.")],
              None),
    "column": (Annotated[list[str] | None, typer.Option(
        "--column", help="Any other column, as OURS=THEIRS (tags=ner_tags)."
    )], None),
    "header": (Annotated[str | None, typer.Option(
        "--header", help="Column names, comma-separated, of a CSV without header."
    )], None),
    "encoding": (Annotated[str, typer.Option(help="Encoding of text files.")], "utf-8"),
    "quotes": (Annotated[bool, typer.Option(
        "--quotes/--no-quotes", help="Quotation marks enclose CSV fields."
    )], True),
}  # fmt: skip

_SANITIZE: Options = {
    "sanitize": (Annotated[str | None, typer.Option(
        help="Change the text on this side first, by a method of `tacit sanitize`.",
    )], None),
    "epsilon_per_distance": (Annotated[float | None, typer.Option(
        help="With --sanitize: the papers' epsilon.",
    )], None),
    "embeddings": (Annotated[str | None, typer.Option(
        help="With --sanitize: as for `tacit sanitize`; ours if not given, or the model's where "
        "it reads the text.",
    )], None),
}  # fmt: skip
SENSITIVE_WORDS: Options = {
    "sensitive_words": (Annotated[Path | None, typer.Option(
        help="With --sanitize santext+: a public list of words.",
    )], None),
}  # fmt: skip
SENSITIVE_SHARE: Options = {
    "sensitive_share": (Annotated[float | None, typer.Option(
        help="With santext+: share of sensitive words (0.9).",
    )], None),
}  # fmt: skip


def gathers(
    argument: str, options: Options, make: Callable[..., Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a group of options where a command takes one `argument`, made of their values."""
    keyword = inspect.Parameter.KEYWORD_ONLY

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        shown: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name != argument:
                shown.append(parameter.replace(kind=keyword))
                continue
            for name, (annotation, default) in options.items():
                shown.append(
                    inspect.Parameter(name, keyword, default=default, annotation=annotation)
                )

        @functools.wraps(command)
        def wrapper(**values: Any) -> Any:
            chosen = {name: values.pop(name) for name in options}
            return command(**{argument: make(**chosen)}, **values)

        wrapper.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return wrapper

    return decorate


@dataclass(frozen=True)
class Sanitizing:
    """How a command changes text before anything else sees it; not at all without a method."""

    method: str | None = None
    epsilon: float | None = None
    embeddings: str | None = None
    words: Path | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        alone = (self.epsilon, self.embeddings, self.words, self.share)
        if self.method is None and any(value is not None for value in alone):
            raise UsageError(
                "--epsilon-per-distance, --embeddings, --sensitive-words and --sensitive-share go "
                "with --sanitize."
            )

    def query(self, text: str) -> str:
        """One text as a model is to see it."""
        from tacit.sanitization import sanitize_query

        return sanitize_query(
            text, str(self.method), epsilon_per_distance=self.epsilon,
            embeddings=self.embeddings or "own", sensitive_words=self.words,
        )  # fmt: skip

    def sanitizer(self, embeddings: str, seed: int) -> Any:
        """The sanitizer of word by word methods; None without a method."""
        from tacit.sanitization import Recipe, open_sanitizer

        if self.method is None:
            return None
        recipe = Recipe(self.method, self.epsilon)
        chosen = self.embeddings or embeddings
        return open_sanitizer(recipe, chosen, seed=seed, workers=2, share=self.share)


def sanitizes(
    more: Options, method: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command that takes `sanitizing: Sanitizing` the options of it."""
    options = {**_SANITIZE, "sanitize": (_SANITIZE["sanitize"][0], method), **more}

    def made(
        *,
        sanitize: str | None,
        epsilon_per_distance: float | None,
        embeddings: str | None,
        sensitive_words: Path | None = None,
        sensitive_share: float | None = None,
    ) -> Sanitizing:
        return Sanitizing(
            sanitize, epsilon_per_distance, embeddings, sensitive_words, sensitive_share
        )

    return gathers("sanitizing", options, made)
