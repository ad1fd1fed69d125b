"""How to find our columns in somebody else's source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from tacit.corpus import COLUMNS
from tacit.errors import DataError, UsageError

FORMATS = ("jsonl", "csv", "tsv", "parquet", "conll", "text", "dataset")
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".conll": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".txt": "text",
}
# What a column may be called at its source when no name is given; the first found is taken.
_USUAL_NAMES = {
    "user": ("user", "user_id", "author"),
    "text": ("text", "sentence", "content", "body"),
    "pair": ("pair", "sentence2", "text_pair"),
    "tokens": ("tokens", "words"),
    "tags": ("tags", "ner_tags"),
    "pos": ("pos", "pos_tags"),
}
_SHOWN = 12  # names of columns in an error


@dataclass(frozen=True)
class Layout:
    """How to find our columns in a source: `columns` maps our name to theirs.

    `header` names the columns of a CSV file that has no header line; `quoted` says whether
    quotation marks in CSV and TSV enclose fields or are plain characters.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    format: str | None = None
    encoding: str = "utf-8"
    header: tuple[str, ...] | None = None
    quoted: bool = True

    def __post_init__(self) -> None:
        for ours in self.columns:
            if ours not in COLUMNS:
                raise UsageError(f"column={ours!r} is unknown; accepted: {', '.join(COLUMNS)}.")
        if self.format is not None and self.format not in FORMATS:
            raise UsageError(f"format={self.format!r} is unknown; accepted: {', '.join(FORMATS)}.")

    def sources(self, available: list[str], name: str) -> dict[str, str]:
        """Ours to theirs for the columns that the source has; text must be among them.

        The source's column names are listed in errors only if one of them is known: where a
        header is missing, the first line of the text would stand there.
        """
        found = {}
        for ours in COLUMNS:
            if ours in self.columns:
                if self.columns[ours] not in available:
                    raise DataError(
                        f"{name} has no column {self.columns[ours]!r} (asked for as {ours}); "
                        f"{self._others(available, self.columns[ours])}"
                    )
                found[ours] = self.columns[ours]
            else:
                usual = [n for n in _USUAL_NAMES.get(ours, (ours,)) if n in available]
                if usual:
                    found[ours] = usual[0]
        if "text" not in found and "tokens" not in found:
            raise DataError(
                f"{name} has no column 'text'; name the one that holds it "
                "(tacit corpus convert FILE --text NAME -o NEW.parquet; for a CSV file without "
                "a header line, name all columns with --header)."
            )
        return found

    def _others(self, available: list[str], wanted: str) -> str:
        usual = {name for ours in COLUMNS for name in _USUAL_NAMES.get(ours, (ours,))}
        if not (usual | set(self.columns.values())) & set(available):
            return f"it has {len(available)} other column(s): give one of their names."
        close = get_close_matches(wanted, available, 1)
        meant = f"Did you mean {close[0]!r}? " if close else ""
        more = "" if len(available) <= _SHOWN else f" and {len(available) - _SHOWN} more"
        return f"{meant}It has {', '.join(map(repr, available[:_SHOWN]))}{more}."


def format_of(path: Path) -> str:
    """The format that a file's name tells, `.gz` aside."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UsageError(
            f"{path}: the ending {suffix!r} does not tell the format; give it with --format "
            f"({', '.join(FORMATS)})."
        )
    return _SUFFIXES[suffix]
