"""`tacit canaries`, `tacit attack`, `tacit audit`: try to break what was promised."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli.common import (
    AsJson,
    Overwrite,
    Seed,
    new_corpus_file,
    out,
    print_json,
    progress,
    reads_corpus,
    say,
    simple_table,
    whole_numbers,
)
from tacit.corpus import Corpus
from tacit.errors import UsageError

if TYPE_CHECKING:
    from tacit.attacking import Scores

canaries = typer.Typer(
    help="Secrets made by template, planted in a corpus before training.\n\n"
    "Example: `tacit canaries plant dialogs.jsonl -o planted.jsonl`",
    no_args_is_help=True,
)


@canaries.callback()
def _canaries() -> None:
    pass


@canaries.command("plant")
@reads_corpus
def plant(
    corpus: Corpus,
    to: Annotated[Path, typer.Option("-o", "--out", help="File for the planted corpus.")],
    template: Annotated[
        str, typer.Option(help="digits, spaced-digits, words, name or phone.")
    ] = "digits",
    repetitions: Annotated[
        str, typer.Option(help="How often canaries are repeated, with commas between.")
    ] = "1,5,20",
    each: Annotated[int, typer.Option(min=1, help="Canaries for each repetition.")] = 10,
    held_out: Annotated[int, typer.Option(min=0, help="Controls that are never planted.")] = 20,
    placing: Annotated[
        str,
        typer.Option(
            help="Who writes them: `own-user` (a new user each), `one-user`, `users` (another for "
            "each repetition), `entity` (the same, and the secret marked as sensitive)."
        ),
    ] = "own-user",
    coins: Annotated[
        bool, typer.Option("--coins", help="Each is in or out by a fair coin: for `tacit audit`.")
    ] = False,
    words: Annotated[
        Path | None,
        typer.Option(help="With template words: a file of words, one a line, instead of ours."),
    ] = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Plant secrets in a corpus; the plan of them is kept beside it.

    The plan, `NAME.canaries.json`, holds the secrets, those that were never planted too: guard it
    like the corpus.

    Example: `tacit canaries plant dialogs.jsonl --template digits --repetitions 1,10 -o p.jsonl`
    """
    import numpy as np

    from tacit.attacking.canaries import TEMPLATES, beside, words_template
    from tacit.attacking.canaries import plant as put
    from tacit.files import need_file, refuse_overwrite
    from tacit.writing import write

    if template not in TEMPLATES:
        raise UsageError(f"template={template!r} is not known; accepted: {', '.join(TEMPLATES)}.")
    form = TEMPLATES[template]
    if words is not None:
        if template != "words":
            raise UsageError("--words goes with --template words.")
        form = words_template(need_file(words).read_text(encoding="utf-8").split())
    new_corpus_file(to, overwrite=overwrite, among=("jsonl",))
    refuse_overwrite(beside(to), overwrite=overwrite)
    planted, plan = put(
        corpus, form, repetitions=whole_numbers(repetitions, "--repetitions"), each=each,
        held_out=held_out, placing=placing, coins=coins,  # type: ignore[arg-type]
        rng=np.random.default_rng(seed),
    )  # fmt: skip
    # First the plan: canaries of which nobody knows would be worse than a plan without them.
    plan.write(beside(to))
    write(planted, to)
    inside = plan.inside()
    facts = {
        "template": form.name,
        "secrets of this form": form.size,
        "planted": len(inside),
        "records added": sum(len(c.records) for c in inside),
        "held out": len(plan.outside()),
    }
    if as_json:
        print_json({"corpus": str(to), "plan": str(beside(to)), **facts})
        return
    table = simple_table("canaries", "")
    for name, value in facts.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    out.print(table)
    say(f"corpus: {to}\nplan (holds the secrets): {beside(to)}")


def attack(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="Folders of runs, or of any causal models."),
    ],
    using: Annotated[
        str | None,
        typer.Option(
            help="Attacks with commas between; all that have what they need if not given."
        ),
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(help="For a model that is no run: what it was trained on.")
    ] = None,
    mentions: Annotated[
        Path | None, typer.Option(help="What is sensitive, if the run does not know.")
    ] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="Plan of canaries, if not beside the run's corpus.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Folder of a model that saw none of the text.")
    ] = None,
    context: Annotated[
        int, typer.Option(min=2, help="For a model that is no run: longest record, in tokens.")
    ] = 128,
    to: Annotated[
        Path | None, typer.Option("-o", "--out", help="File for the scores; MODEL/attacks.json.")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Try to learn from a model what it was trained on.

    Attacks: exposure, membership, secrets, tab, extraction, linkage. Give several folders (other
    runs, saved checkpoints) to compare them: perplexity stands beside every figure. The scores are
    exact figures over private text: keep them inside.

    Examples: `tacit attack RUN --using exposure,membership` ·
    `tacit attack gpt2-folder --corpus mail.jsonl --using membership`
    """
    from tacit.attacking import write_scores

    if to is not None and len(models) > 1:
        raise UsageError("-o names one file; with several models, each folder gets its own.")
    everything = {}
    for folder in models:
        found = _attacked(folder, using, corpus, mentions, canaries, reference, context, seed)
        write_scores(to or folder / "attacks.json", found)
        everything[str(folder)] = found
    if as_json:
        print_json({name: [s.as_dict() for s in found] for name, found in everything.items()})
        return
    for name, found in everything.items():
        if len(everything) > 1:
            out.print(f"[bold]{name}[/bold]")
        _show(found)
    for folder in models:
        say(f"scores (not private): {to or folder / 'attacks.json'}")


def _attacked(
    folder: Path,
    using: str | None,
    corpus: str | None,
    mentions: Path | None,
    canaries: Path | None,
    reference: Path | None,
    context: int,
    seed: int,
) -> "list[Scores]":
    import numpy as np

    from tacit.attacking.attack import attack_named, chosen, known, missing, need_all
    from tacit.attacking.target import open_target
    from tacit.reading import read

    wanted = chosen(using) if using is not None else []
    with progress("Opening", None):
        target = open_target(
            folder, corpus=read(Path(corpus)) if corpus is not None else None, mentions=mentions,
            canaries=canaries, reference=reference, context=context,
        )  # fmt: skip
    has = list(target.has())
    for one in wanted:
        need_all(one, has)
    if using is None:
        ready = [attack_named(name) for name in known()]
        # Those without a need of their own make do with canaries.
        wanted = [a for a in ready if not missing(a, has) and (a.needs or "canaries" in has)]
        if not wanted:
            raise UsageError(
                f"{folder} comes without anything that an attack needs; give --corpus, --canaries "
                "or --reference."
            )
    found = []
    for one in wanted:
        with progress(one.name.capitalize(), None) as advance:
            found.append(one.run(target, progress=advance, rng=np.random.default_rng(seed)))
    return found


def _show(found: "list[Scores]") -> None:
    table = simple_table("attack", "figure", "value", "95 % interval", "perplexity")
    table.columns[1].justify = "left"
    for scores in found:
        beside = "-" if scores.perplexity is None else f"{scores.perplexity:.4g}"
        for figure, value in scores.figures.items():
            low, high = scores.intervals.get(figure, (None, None))
            spread = "" if low is None else f"{low:.3g} to {high:.3g}"
            table.add_row(scores.attack, figure.replace("_", " "), f"{value:.4g}", spread, beside)
    out.print(table)
    for scores in found:
        if scores.attack == "exposure":
            rows = simple_table("repetitions", "canaries", "mean bits", "largest")
            for row in scores.rows:
                count = row["repetitions"] or "0 (never planted)"
                rows.add_row(
                    str(count), str(row["canaries"]), f"{row['mean_bits']:.2f}",
                    f"{row['largest_bits']:.2f}",
                )  # fmt: skip
            out.print(rows)
        for note in scores.notes:
            say(f"{scores.attack}: {note}")


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    unit: Annotated[
        str | None,
        typer.Option(help="For whom: users, entities, ...; all of the certificate if not given."),
    ] = None,
    canaries: Annotated[
        int | None,
        typer.Option(min=64, help="Canaries; by the certified epsilon if not given."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Audit only so many of the run's steps.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    as_json: AsJson = False,
) -> None:
    """Look for a lower bound on epsilon, and compare it with the certificate.

    White box: the run's method takes its steps on canaries that fill its bounds. Where canaries
    were planted by coins (`tacit canaries plant --coins`), the trained model is asked about them,
    too. A contradiction makes the certificate's standing `broken`, and the exit code is 4.

    Example: `tacit audit RUN --unit users`
    """
    from tacit.attacking.audits import audit_run
    from tacit.errors import PrivacyRefused

    with progress("Auditing", None) as advance:
        found = audit_run(
            run, unit=unit, canaries=canaries, steps=steps, confidence=confidence, progress=advance
        )
    if as_json:
        print_json({"audits": [one.as_dict() for one in found]})
    else:
        for one in found:
            out.print(one.sentence)
            say(
                f"  {one.evidence.how}; {one.evidence.correct:,} of {one.evidence.guesses:,} "
                f"guesses right, {one.evidence.canaries:,} canaries"
            )
        say(f"audit: {run / 'audit.json'}")
    if any(one.verdict == "contradicted" for one in found):
        raise PrivacyRefused(
            f"The certificate of {run} is contradicted; its standing is now broken. Do not release "
            "this model."
        )
