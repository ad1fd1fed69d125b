"""`tacit canaries`, `tacit attack`, `tacit audit`: try to break what was promised."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import (
    AsJson,
    AtOnce,
    OnRay,
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
from tacit.workers import Workers

if TYPE_CHECKING:
    from tacit.attacks.attack import Scores, Series
    from tacit.attacks.target import Target
    from tacit.audits.audit import Way
    from tacit.audits.epsilon_bounds import Audit

MASKED_TEXTS = 100
"""Masks are guessed in so many texts of a corpus, the first ones."""

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
    spelled_by: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="RUN.yml",
            help="A run file, or a folder with a tokenizer: secrets are made of what it spells.",
        ),
    ] = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Plant secrets in a corpus; the plan of them is kept beside it.

    The plan, `NAME.canaries.json`, holds the secrets, those that were never planted too: guard it
    like the corpus. A tokenizer of whole words writes words that it does not know as one unknown
    word, and secrets of such words cannot be told apart; `--for` makes secrets that it spells.

    Examples: `tacit canaries plant dialogs.jsonl --template digits --repetitions 1,10 -o p.jsonl` ·
    `tacit canaries plant dialogs.jsonl --template words --for run.yml -o p.jsonl`
    """
    import numpy as np

    from tacit.attacks.canaries import TEMPLATES, beside, placing_named, words_template
    from tacit.attacks.canaries import plant as put
    from tacit.corpus.writing import write
    from tacit.files import refuse_overwrite, require_file

    if template not in TEMPLATES:
        raise UsageError(f"template={template!r} is not known; accepted: {', '.join(TEMPLATES)}.")
    if words is not None and template != "words":
        raise UsageError("--words goes with --template words.")
    form = TEMPLATES[template]
    if words is not None:
        form = words_template(require_file(words).read_text(encoding="utf-8").split())
    new_corpus_file(to, overwrite=overwrite, among=("jsonl",))
    refuse_overwrite(beside(to), overwrite=overwrite)
    if spelled_by is not None:
        from tacit.attacks.spelling import form_for, require_words, tokenizer_for

        tokenizer = tokenizer_for(spelled_by, corpus)
        if words is not None:
            require_words(tokenizer, form, spelled_by)
        form, changed = form_for(tokenizer, form, spelled_by, np.random.default_rng(seed))
        if changed:
            say(changed)
    planted, plan = put(
        corpus, form, repetitions=whole_numbers(repetitions, "--repetitions"), each=each,
        held_out=held_out, placing=placing_named(placing), coins=coins,
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
    if spelled_by is None:
        say("Whether a run's tokenizer spells them was not looked at; --for RUN.yml does.")


@dataclass(frozen=True)
class Given:
    """What a person gave beside a model."""

    using: str | None = None
    corpus: str | None = None
    mentions: Path | None = None
    canaries: Path | None = None
    reference: Path | None = None
    context: int = 128
    seed: int = 0
    sanitize: str | None = None
    epsilon_per_distance: float | None = None
    embeddings: str | None = None


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
    over_checkpoints: Annotated[
        bool,
        typer.Option(
            "--over-checkpoints", help="Attack the models that a run kept on the way, too."
        ),
    ] = False,
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
    sanitize: Annotated[
        str | None,
        typer.Option(help="With --using masks: how --corpus is sanitized, as for `tacit guess`."),
    ] = None,
    epsilon_per_distance: Annotated[
        float | None, typer.Option(help="With --sanitize: the papers' epsilon.")
    ] = None,
    embeddings: Annotated[
        str | None, typer.Option(help="With --sanitize: as for `tacit guess`.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("-o", "--out", help="File for the scores; MODEL/attacks.json.")
    ] = None,
    seed: Seed = 0,
    workers: AtOnce = 1,
    ray: OnRay = None,
    as_json: AsJson = False,
) -> None:
    """Try to learn from a model what it was trained on.

    Attacks: exposure, membership, secrets, tab, extraction, linkage; masks, on sanitized text; and
    those of installed packages. With `--over-checkpoints`, or several folders, leakage can be
    compared at like perplexity: it stands beside every figure. The scores are exact figures over
    private text: keep them inside.

    Examples: `tacit attack RUN --using exposure,membership` ·
    `tacit attack gpt2-folder --corpus mail.jsonl --using membership` ·
    `tacit attack RUN --over-checkpoints`
    """
    from tacit.attacks.attack import keep_scores, series_fields, write_scores

    if to is not None and (len(models) > 1 or over_checkpoints):
        raise UsageError("-o names one file; with several models, each folder gets its own.")
    given = Given(using, corpus, mentions, canaries, reference, context, seed, sanitize,
                  epsilon_per_distance, embeddings)  # fmt: skip
    everything: dict[str, Series] = {}
    shared = Workers(workers, ray)
    for folder in models:
        if over_checkpoints:
            everything[str(folder)] = attack_series(folder, given, shared)
        else:
            found = attack_model(folder, given, shared)
            write_scores(to, found) if to else keep_scores(folder, found)
            everything[str(folder)] = {0: {s.attack: s for s in found}}
    if as_json:
        fields = {name: series_fields(series) for name, series in everything.items()}
        print_json(fields if over_checkpoints else {n: f[0]["scores"] for n, f in fields.items()})
        return
    for name, series in everything.items():
        if len(everything) > 1:
            out.print(f"[bold]{name}[/bold]")
        if over_checkpoints:
            _show_series(series)
        _show(list(series[max(series)].values()))
    for folder in models:
        say(f"scores (not private): {to or folder / 'attacks.json'}")


def attack_model(folder: Path, given: Given, workers: Workers | None = None) -> "list[Scores]":
    """All attacks that are wanted on one folder."""
    from tacit.attacks.running import wanted

    target = _opened(folder, given)
    shares = [(attack.name, None) for attack in wanted(target, given.using)]
    return _shared(folder, given, target, shares, workers)


def attack_series(
    folder: Path,
    given: Given,
    workers: Workers | None = None,
    steps: Sequence[int] | None = None,
) -> "Series":
    """The same on every model that a run kept, and on the last; both are written to its folder.

    With `steps`, of those that it kept only the models after these.
    """
    from tacit.attacks.attack import keep_scores, write_series
    from tacit.attacks.running import last_step, require_kept, steps_of, wanted

    if (folder / "run.yml").exists():
        require_kept(folder)
    target = _opened(folder, given)
    names = [attack.name for attack in wanted(target, given.using)]
    among = steps_of(target) if steps is None else [*steps, None]
    shares = [(name, step) for step in among for name in names]
    found: Series = {}
    scores = _shared(folder, given, target, shares, workers)
    for (_, step), one in zip(shares, scores, strict=True):
        found.setdefault(last_step(target) if step is None else step, {})[one.attack] = one
    write_series(folder / "attacks-over-steps.json", found)
    keep_scores(folder, found[max(found)].values())
    return found


class _OneAttack:
    """One attack on one model of a run; in another process, the run is opened there first."""

    def __init__(self, folder: Path, given: Given, target: "Target") -> None:
        self._folder, self._given = folder, given
        self._target: Target | None = target
        self._watch: Any = progress
        self._then: tuple[int | None, Target] = (None, target)

    def __getstate__(self) -> dict[str, Any]:
        from tacit.attacks.running import unwatched

        return {
            "_folder": self._folder,
            "_given": self._given,
            "_target": None,
            "_watch": unwatched,
        }

    def __call__(self, share: tuple[str, int | None]) -> "Scores":
        """Attack the model after a step; None is the last."""
        from tacit.attacks.attack import ATTACKS
        from tacit.attacks.running import at_step, run_attacks

        name, step = share
        if self._target is None:
            self._target = _opened(self._folder, self._given)
            self._then = (None, self._target)
        if self._then[0] != step:
            self._then = (step, at_step(self._target, step))
        of = "" if step is None else f", step {step}"
        found = run_attacks(
            self._then[1], [ATTACKS[name]], self._watch, seed=self._given.seed, of=of
        )
        return found[0]


def _shared(
    folder: Path,
    given: Given,
    target: "Target",
    shares: Sequence[tuple[str, int | None]],
    workers: Workers | None,
) -> "list[Scores]":
    """The shares one after the other, or several at once."""
    work = _OneAttack(folder, given, target)
    if workers is None or workers == Workers():
        return [work(share) for share in shares]
    found = []
    with progress("Attacking", len(shares)) as advance:
        for scores in workers.map(work, shares):
            found.append(scores)
            advance(1)
    return found


def _opened(folder: Path, given: Given) -> "Target":
    from tacit.attacks.attack import chosen
    from tacit.attacks.target import Masked, open_masked, open_target
    from tacit.cli.masked import unchanged_and_sanitized
    from tacit.corpus.reading import read

    for one in chosen(given.using) if given.using is not None and given.sanitize is None else []:
        if "masked" in one.needs:
            raise UsageError(
                f"The attack {one.name} needs text and how it is sanitized: --corpus FILE "
                "--sanitize METHOD --epsilon-per-distance X."
            )
    if given.sanitize is None and (given.epsilon_per_distance or given.embeddings):
        raise UsageError("--epsilon-per-distance and --embeddings go with --sanitize.")
    corpus = read(Path(given.corpus)) if given.corpus is not None else None
    with progress("Opening", None):
        if given.sanitize is None:
            return open_target(
                folder, corpus=corpus, mentions=given.mentions, canaries=given.canaries,
                reference=given.reference, context=given.context,
            )  # fmt: skip
        if corpus is None:
            raise UsageError("--sanitize needs text to sanitize; give --corpus.")
        pair = unchanged_and_sanitized(
            given.sanitize, given.epsilon_per_distance, given.embeddings or str(folder), given.seed
        )
        texts = tuple(corpus.column("text").slice(0, MASKED_TEXTS).to_pylist())
        return open_masked(folder, Masked(texts, pair[1], pair[0]), context=given.context)


def _show_series(series: "Series") -> None:
    from tacit.reports.facts import fixed, headlines_of, model_of

    models = [model_of(step, scores) for step, scores in series.items()]
    known = headlines_of(one.leakage for one in models)
    table = simple_table("step", "perplexity", *(one.label for one in known.values()))
    for one in models:
        values = (one.perplexity, *map(one.value, known))
        table.add_row(f"{one.step:,}", *map(fixed, values))
    out.print(table)


def _show(found: "list[Scores]") -> None:
    from tacit.reports.facts import fixed, spread
    from tacit.reports.report import cell

    table = simple_table("attack", "figure", "value", "95 % interval", "perplexity")
    table.columns[1].justify = "left"
    for scores in found:
        for figure, value in scores.figures.items():
            low, high = scores.intervals.get(figure, (None, None))
            between = "" if low is None else spread(low, high, ".3g")
            words = figure.replace("_", " ")
            table.add_row(scores.attack, words, fixed(value), between, fixed(scores.perplexity))
    out.print(table)
    for scores in found:
        columns = scores.presentation.columns
        if columns and scores.rows:
            rows = simple_table(*(column.label for column in columns))
            for row in scores.rows:
                rows.add_row(*(cell(row, column) for column in columns))
            out.print(rows)
        if scores.verdict is not None:
            out.print(f"{scores.attack}: {scores.verdict}", markup=False)
        for note in scores.notes:
            say(f"{scores.attack}: {note}")


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    using: Annotated[
        str | None,
        typer.Option(
            help="How, with commas between: in-situ (a copy of the run trained again), white-box "
            "(its step on canaries alone, without its text), black-box (the trained model asked "
            "about canaries planted by coins). In situ if not given, and black-box where it can be."
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(help="For whom: users, entities, ...; all of the certificate if not given."),
    ] = None,
    canaries: Annotated[
        int | None,
        typer.Option(min=64, help="Canaries; by the certified epsilon if not given."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Audit only so many of the run's steps, against the price of these."
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    as_json: AsJson = False,
) -> None:
    """Look for a lower bound on epsilon, and check that a run does what it promises.

    A copy of the run is trained once more, with its own model, text, sampler, optimizer and noise;
    hypothetical users and entities take part, each in or out by a fair coin, and an adversary who
    sees every step guesses which. Noise, coins and ledger are checked directly. A contradiction, or
    a check that fails, makes the certificate's standing `broken`, and the exit code is 4.

    Examples: `tacit audit RUN` · `tacit audit RUN --unit users --steps 20` ·
    `tacit audit RUN --using white-box`
    """
    from tacit.audits.audit import audit_run
    from tacit.audits.epsilon_bounds import BREAKING
    from tacit.errors import PrivacyRefused

    found = audit_run(
        run, using=_ways(using), unit=unit, canaries=canaries, steps=steps,
        confidence=confidence, watch=progress, on_progress=say,
    )  # fmt: skip
    if as_json:
        print_json({"audits": [one.as_dict() for one in found]})
    else:
        _show_audits(found)
        say(f"audit: {run / 'audit.json'}")
    if any(one.verdict in BREAKING for one in found):
        raise PrivacyRefused(
            f"The certificate of {run} does not hold; its standing is now broken. Do not release "
            "this model."
        )


def _ways(using: str | None) -> "list[Way]":
    from tacit.audits.audit import WAYS

    named = [part.strip() for part in (using or "").split(",") if part.strip()]
    known = {str(way): way for way in WAYS}
    for name in named:
        if name not in known:
            raise UsageError(f"--using {name} is not known; accepted: {', '.join(known)}.")
    return [known[name] for name in named]


def _show_audits(found: "list[Audit]") -> None:
    shown: set[Any] = set()
    for one in found:
        out.print(one.sentence)
        say(
            f"  {one.evidence.how}; {one.evidence.correct:,} of {one.evidence.guesses:,} "
            f"guesses right, {one.evidence.canaries:,} canaries"
        )
        if one.checks and one.checks not in shown:
            shown.add(one.checks)
            table = simple_table("checked", "", "found")
            table.columns[2].justify = "left"
            for check in one.checks:
                table.add_row(check.name, "yes" if check.passed else "NO", check.detail)
            out.print(table)
