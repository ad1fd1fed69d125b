"""What was found, kept as files: the mentions, the entity table, a summary, a page to look at."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.corpus import Corpus
from tacit.detection.mentions import write_lines
from tacit.detection.mentions_page import Learnt, write_page
from tacit.detection.scoring import Scores
from tacit.errors import UsageError
from tacit.files import whole_files
from tacit.privacy.certificates.manifest import file_digest
from tacit.saved_json import spelled

if TYPE_CHECKING:
    from tacit.detection import Detection


def mention_files(mentions: Path, *, page: bool) -> dict[str, Path]:
    """The files that are written for the mentions of a file, by what they hold."""
    stem = mentions.with_suffix("") if mentions.suffix else mentions
    files = {
        "mentions": mentions,
        "entity table (holds names: guard it)": stem.with_name(stem.name + ".entities.jsonl"),
        "summary": stem.with_name(stem.name + ".summary.json"),
    }
    if page:
        files["page (holds text: keep inside)"] = stem.with_name(stem.name + ".html")
    if len(set(files.values())) < len(files):
        raise UsageError(
            f"{mentions}: the page beside the mentions would have that name too; end it in .jsonl."
        )
    return files


def save_detection(
    mentions: Path,
    found: "Detection",
    summary: Mapping[str, Any],
    *,
    corpus: Corpus | None = None,
    page_records: int = 0,
    scores: Scores | None = None,
    learnt: Learnt | None = None,
) -> None:
    """Write the mentions and what belongs to them; the page only where records are wanted on it."""
    files = mention_files(mentions, page=page_records > 0)
    with whole_files(*files.values()) as (marks, entities, about, *page):
        write_lines(marks, found.mentions)
        write_lines(entities, found.entities)
        # With it a run can tell whether the mentions are still what the detectors found.
        said = spelled({**summary, "mentions_sha256": file_digest(marks)})
        about.write_text(json.dumps(said, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        if page and corpus is not None:
            title = f"What was found in {corpus.name}"
            write_page(
                page[0], corpus, found.mentions, title=title, limit=page_records, scores=scores,
                learnt=learnt,
            )  # fmt: skip
