"""What both kinds of certificate share: frozen fields, and files that are read strictly.

A file with a field that is unknown, a thing that is said twice, or a line break inside a value is
refused: it could say one thing to us and another to a reader.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.errors import DataError
from tacit.saved_json import spelled

Infinite = Annotated[float | Literal["infinity"], Field(description="a number, or infinity")]
Randomness = Literal["system", "fixed seed"]
FILE = "certificate.json"


class Frozen(BaseModel):
    """Fields that never change and are all known."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Document(Frozen):
    """Frozen fields that are kept as a JSON file."""

    def to_json(self) -> str:
        """The certificate as a JSON file."""
        fields = spelled(self.model_dump(mode="json"))
        return json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


Kind = TypeVar("Kind", bound=Document)


def read_document(path: Path, kind: type[Kind]) -> Kind:
    """The certificate of a file; anything unknown in it is refused."""
    try:
        content = path.read_bytes()
        _need_plain_text(json.loads(content, object_pairs_hook=no_repeats))
        return kind.model_validate_json(content, strict=True)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; a run writes its {FILE}.") from None
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the file"
        raise DataError(f"{path} is not a certificate that this version knows: {place}.") from None
    except (OSError, ValueError, RecursionError):
        raise DataError(
            f"{path} is not a certificate: it is not a JSON file, says a thing twice, or holds "
            "control characters."
        ) from None


def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a JSON object; refused where two have one name: it could say two things."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError
    return fields


def _need_plain_text(value: Any) -> None:
    """Refuse line breaks and the like, with which one field could pose as another on paper."""
    if isinstance(value, str) and not value.isprintable():
        raise ValueError
    if isinstance(value, dict):
        for key, inner in value.items():
            _need_plain_text(key)
            _need_plain_text(inner)
    elif isinstance(value, list):
        for inner in value:
            _need_plain_text(inner)


def canonical_digest(value: Any) -> str:
    """A SHA-256 of a value as JSON, whatever the order of its fields.

    >>> canonical_digest({"a": 1, "b": 2}) == canonical_digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def finite(value: float) -> float | Literal["infinity"]:
    """A number as JSON can hold it."""
    return value if math.isfinite(value) else "infinity"


def facts_in_lines(facts: Mapping[str, Any]) -> list[str]:
    """Facts as lines, a value that is no text as JSON."""
    return [
        f"{name}: {value}"
        if isinstance(value, str)
        else f"{name}: {json.dumps(spelled(value), ensure_ascii=False, allow_nan=False)}"
        for name, value in facts.items()
    ]
