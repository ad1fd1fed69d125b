"""`tacit policy`: what a policy marks, before anything is trained by it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import out, print_json, progress, reads_corpus, say
from tacit.cli.options import AsJson, Overwrite, PageRecords
from tacit.corpus import Corpus
from tacit.files import refuse_overwrite

if TYPE_CHECKING:
    from tacit.detection.mentions import Mention
    from tacit.detection.policies import Policy

app = typer.Typer(
    help="Policies: which tokens of a text are sensitive.\n\n"
    "Example: `tacit policy show mail.jsonl --policy digits`",
    no_args_is_help=True,
    suggest_commands=False,  # click suggests them itself
)

_KIND = "SENSITIVE"
_COUNTS = (
    "records", "sensitive_records", "tokens", "sensitive_tokens", "segments", "most_segments",
)  # fmt: skip


@app.callback()
def _policy() -> None:
    """Keep `show` a word of its own."""


_Policy = Annotated[
    str,
    typer.Option(
        help="`digits`, a detector (`patterns=email+phone`, `lists=terms.txt`), "
        "`regex=ORD-[0-9]{6}`, "
        "`contextual`, `contextual=MODEL`, "
        "`sentences(POLICY)`, `missing(0.1, POLICY)`, `module:function`; several joined by `+`."
    ),
]
_To = Annotated[Path | None, typer.Option("-o", "--out", help="Page to write (policy.html).")]
_Size = Annotated[int, typer.Option(min=300, help="Size of the byte-pair vocabulary, as in a run.")]
_Tokenizer = Annotated[
    Path | None, typer.Option(help="A folder with a tokenizer to count by instead.")
]


@app.command()
@reads_corpus
def show(
    corpus: Corpus,
    policy: _Policy,
    to: _To = None,
    size: _Size = 4000,
    tokenizer: _Tokenizer = None,
    page_records: PageRecords = 500,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Show the share of tokens that a policy marks, and write a page that highlights them.

    A token that touches something marked is sensitive. Tokens are those of the public byte-pair
    vocabulary that runs use by default.

    Examples: `tacit policy show mail.jsonl --policy digits` ·
    `tacit policy show mail.jsonl --policy "sentences(patterns+lists)" -o marked.html`
    """
    from tacit.detection.mentions_page import write_page
    from tacit.detection.policies import open_policy
    from tacit.training.models import tokens

    page = (to or Path("policy.html")) if page_records else None
    if page:
        refuse_overwrite(page, overwrite=overwrite)
    opened = open_policy(policy)
    words = tokens.load_tokenizer(tokenizer) if tokenizer else tokens.byte_level_bpe(None, size)
    found, counts = _mark_all(corpus, opened, words)
    share = counts["sensitive_tokens"] / max(1, counts["tokens"])
    facts = _in_words(share, counts)
    if page:
        title = f"What {opened.name} marks in {corpus.name}"
        write_page(page, corpus, found, title=title, limit=page_records, facts=facts)
    if as_json:
        print_json({"policy": opened.name, "sensitive_share": round(share, 6), **counts})
        return
    out.print(facts)
    if page:
        say(f"page (holds text: keep inside): {page}")


def _mark_all(
    corpus: Corpus, policy: "Policy", tokenizer: Any
) -> "tuple[list[Mention], dict[str, int]]":
    found: list[Mention] = []
    counts = dict.fromkeys(_COUNTS, 0)
    with progress("Marking", len(corpus)) as advance:
        for own in _marked(corpus, policy, tokenizer, counts):
            found += own
            advance(1)
    return found, counts


def _in_words(share: float, counts: dict[str, int]) -> str:
    return (
        f"{share:.2%} of {counts['tokens']:,} tokens are sensitive, in "
        f"{counts['sensitive_records']:,} of {counts['records']:,} records; a record has at most "
        f"{counts['most_segments']:,} sensitive stretches."
    )


def _marked(
    corpus: Corpus, policy: "Policy", tokenizer: Any, counts: dict[str, int]
) -> "Iterator[list[Mention]]":
    """The sensitive tokens of each record, neighbours joined; the counts grow meanwhile."""
    from tacit.detection.mentions import Mention
    from tacit.detection.policies import mark, spans_of
    from tacit.training.tasks.encoding import pieces_of, touching

    texts = corpus.column("text").to_pylist()
    marks = mark(corpus, policy)
    for (record, spans), pieces in zip(marks, pieces_of(texts, tokenizer), strict=True):
        hit = touching(pieces, spans)
        stretches = spans_of(hit)
        counts["records"] += 1
        counts["sensitive_records"] += bool(stretches)
        counts["tokens"] += len(hit)
        counts["sensitive_tokens"] += int(hit.sum())
        counts["segments"] += len(stretches)
        counts["most_segments"] = max(counts["most_segments"], len(stretches))
        places = ((int(pieces.starts[a]), int(pieces.ends[b - 1])) for a, b in stretches)
        yield [
            Mention(record, start, end, _KIND, "tokens", 1.0, f"policy: {policy.name}")
            for start, end in places
            if start < end
        ]
