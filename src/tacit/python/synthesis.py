"""`tacit.synthesize`: a corpus that may be shared, from a corpus and a plan."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.corpus import Corpus
from tacit.corpus.writing import write
from tacit.errors import TacitError
from tacit.files import refuse_overwrite

if TYPE_CHECKING:
    from tacit.synthesis.session import Synthesized


def synthesize(
    corpus: Corpus | str | Path,
    to: str | Path,
    *,
    like: str | Path = "start:english",
    plan: Mapping[str, Any],
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    **settings: Any,
) -> "Synthesized":
    """Make a synthetic corpus that may be shared, with its certificate beside it.

    `like` is the generator: a run on this corpus, whose ledger is carried, a public model, or a
    file of public texts. `plan` says whom to protect and at what price: `{"protect": "users",
    "epsilon": 8, "users": 500}`. `settings` are those of `tacit synthesize --set`. A corpus that is
    given as an object is written beside the file, to FILE.private.parquet, so that what was
    interrupted can go on.
    """
    from tacit.sanitization import certificate_folder
    from tacit.synthesis.session import prepared, synthesize_file
    from tacit.synthesis.settings import Synthesis

    to = Path(to)
    place = to.with_name(to.name + ".private.parquet")
    if isinstance(corpus, Corpus):
        refuse_overwrite(place, overwrite=overwrite)
        write(corpus, place)
    source = place if isinstance(corpus, Corpus) else corpus
    fields = {"corpus": str(source), "generator": str(like), "plan": dict(plan), **settings}
    try:
        ready = prepared(Synthesis(**fields))
        return synthesize_file(ready, to, overwrite=overwrite, progress=progress)
    except TacitError:
        if isinstance(corpus, Corpus) and not certificate_folder(to).exists():
            place.unlink()  # refused: nothing of it is left
        raise
