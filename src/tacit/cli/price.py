"""`tacit price`: what a plan would cost, what the papers say, and where they are wrong."""

import inspect
import math
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from tacit.cli.common import out, print_json, progress, say, simple_table, whole_numbers
from tacit.cli.options import AsJson, Options, Overwrite, gathers
from tacit.errors import UsageError
from tacit.files import refuse_overwrite
from tacit.privacy.rounding import down, percent, up

_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("protect", str, "records, users, entities, users+entities, names, users+names or tokens."),
    ("flat", bool, "Records are the units (flat)."),
    ("replace", bool, "Neighbours replace one unit instead of removing it."),
    ("selective", bool, "Tokens: noise on sensitive segments only."),
    ("user_rate", float, "Poisson sampling rate of users in a step."),
    ("record_rate", float, "Poisson sampling rate of records in a step."),
    ("entity_rate", float, "Poisson sampling rate of entities in a step."),
    ("users_per_entity", int, "Cap k (1)."),
    ("entity_share", float, "Tau, from 0 to 2 (0.5)."),
    ("users_per_name", int, "Names: users who show one, at most (2)."),
    ("names_per_user", int, "Names: names that a user shows, at most (4)."),
    ("name_share", float, "Names: tau, from 0 to 2 (0: none is shown)."),
    ("records_per_user", int, "Cap on a user's records (flat)."),
    ("records_per_entity", int, "Cap on an entity's records (flat)."),
    ("segments", int, "Selective: sensitive segments of a record, at most (4)."),
    ("states", int, "Selective: hidden states passed on (2, as in an LSTM)."),
    ("noise_multiplier", float, "Noise over clip norm."),
    ("state_noise_multiplier", float, "The same, for states."),
    ("steps", int, "How many releases."),
    ("delta", float, "Delta (1e-5; with --published, the paper's own)."),
    ("degrees", str, "Entity degrees of the curve, comma-separated; empty for none."),
    ("curves", None, "Curves over steps and degree (not in JSON unless asked)."),
    ("published", str, "A paper's own formula: uedp, user, selective, gdp, dpnr or binary."),
    ("counterexample", bool, "Show where the published UeDP bound fails."),
    ("estimator", str, "Published: f_E or f_E+."),
    ("users", int, "Published: users in all."),
    ("users_per_step", float, "Published: users in a step."),
    ("sensitive", int, "Published: sensitive records."),
    ("records", int, "Published: records in all."),
    ("gradient_releases", int, "Published selective: gradients."),
    ("state_releases", int, "Published selective: states."),
    ("epsilon", float, "Published dpnr: epsilon of a dimension; binary: of a bit."),
    ("dimensions", int, "Published dpnr, binary: dimensions."),
    ("integer_bits", int, "Published binary: bits before the point."),
    ("fraction_bits", int, "Published binary: bits behind it."),
    ("word_dropout", float, "Published dpnr: share of words dropped."),
    ("plot", Path, "Picture of the curves: .png, .svg or .html."),
)


def _options() -> Options:
    """The table above as options; what is not given is None."""
    options: dict[str, tuple[Any, Any]] = {}
    for name, kind, says in _OPTIONS:
        option = typer.Option(help=says, min=0 if name == "steps" else None)
        if kind is bool:
            option = typer.Option(f"--{name}", help=says)
        default = {"degrees": "1,2,4,8,16,32"}.get(name, False if kind is bool else None)
        shown = kind or bool
        options[name] = (Annotated[shown if default is not None else shown | None, option], default)
    return options | {"as_json": (AsJson, False), "overwrite": (Overwrite, False)}


@gathers("given", _options(), dict)
def price(given: dict[str, Any]) -> None:
    """What would this cost? Epsilon for users, entities and both, from our accountants.

    Examples: `tacit price --protect users+entities --user-rate 0.05 --noise-multiplier 8 --steps
    500` · `tacit price --published uedp --users 946 --users-per-step 50 --entity-rate 0.5
    --noise-multiplier 2 --steps 500 --sensitive 5187 --records 14040 --plot claimed.png` ·
    `tacit price --counterexample`
    """
    as_json, plot, curves = given["as_json"], given["plot"], given["curves"]
    if given["counterexample"]:
        _refuse_unused(given, {"counterexample"}, "--counterexample")
        return _counterexample(as_json)
    if plot:
        from tacit.reports.plots import format_of

        format_of(plot)
        refuse_overwrite(plot, overwrite=given["overwrite"])
    if given["published"]:
        return _published(given["published"], given, as_json)
    protect, steps = given["protect"], given["steps"]
    if protect is None or given["noise_multiplier"] is None or steps is None:
        raise UsageError(
            "Give --protect, --noise-multiplier and --steps (or --published NAME, or "
            "--counterexample); `tacit price --help` has examples."
        )
    found = _quoted(given, curves if curves is not None else (not as_json or plot is not None))
    if plot:
        from tacit.reports.plots import save
        from tacit.reports.price_curves import price_figure

        save(price_figure(found), plot)
    if as_json:
        print_json(found.as_json())
    else:
        _print(found)
    if plot:
        say(f"picture: {plot}")


def _quoted(given: Mapping[str, Any], curves: bool) -> Any:
    """The price that the options ask for, with curves over steps and degrees if wanted."""
    from tacit.planning.prices import quote

    protect, delta = given["protect"], 1e-5 if given["delta"] is None else given["delta"]
    event = _event(given)
    by_degree = curves and "entities" in protect
    degrees = whole_numbers(given["degrees"], "--degrees") if by_degree else []
    with progress("Pricing", (8 + len(degrees)) if curves else 0) as advance:
        return quote(
            event, given["steps"], delta, protect, over_steps=curves, degrees=degrees,
            advance=advance,
        )  # fmt: skip


_Need: TypeAlias = Callable[..., Any]


def _event(given: Mapping[str, Any]) -> Any:
    """The event that the options describe; an option that has no meaning there is refused."""
    protect = given["protect"]
    used = set(_FOR_EVERY_EVENT)

    def need(name: str, default: Any = None) -> Any:
        used.add(name)
        value = given[name] if given[name] is not None else default
        if value is None:
            raise UsageError(f"--protect {protect} needs --{name.replace('_', '-')}.")
        return value

    if protect not in _UNITS:
        raise UsageError(f"protect={protect!r} is unknown; accepted: {', '.join(_UNITS)}.")
    event = _token_event(given, need, used) if protect == "tokens" else _unit_event(given, need)
    _refuse_unused(given, used, f"--protect {protect} with these options")
    return event


def _token_event(given: Mapping[str, Any], need: _Need, used: set[str]) -> Any:
    from tacit.privacy.events import ReplaceOne, Selective

    noise = given["noise_multiplier"]
    if need("selective"):
        return Selective(
            noise_multiplier=noise,
            state_noise_multiplier=need("state_noise_multiplier", noise),
            segments=need("segments", 4),
            states=need("states", 2),
            rate=need("record_rate", 1.0),
        )
    # Neighbours of tokens always replace: another value for the same secret.
    used.add("replace")
    return ReplaceOne(unit="tokens", rate=need("record_rate"), noise_multiplier=noise)


def _unit_event(given: Mapping[str, Any], need: _Need) -> Any:
    from tacit.privacy.events import (
        Flat,
        MentionSubstitution,
        ReplaceOne,
        SampledGaussian,
        UserClip,
    )

    protect, noise = given["protect"], given["noise_multiplier"]
    if "names" in protect:
        return MentionSubstitution(
            user_rate=need("user_rate"),
            users_per_name=need("users_per_name", 2),
            names_per_user=need("names_per_user", 4),
            name_share=float(need("name_share", 0.0)),
            noise_multiplier=noise,
        )
    if protect != "records" and need("flat"):
        return Flat(
            record_rate=need("record_rate"),
            records_per_user=need("records_per_user"),
            records_per_entity=need("records_per_entity"),
            noise_multiplier=noise,
        )
    if protect in ("records", "users"):
        rate = need("record_rate" if protect == "records" else "user_rate")
        kind: Any = ReplaceOne if need("replace") else SampledGaussian
        return kind(unit=protect, rate=rate, noise_multiplier=noise)
    return UserClip(
        user_rate=need("user_rate"),
        users_per_entity=need("users_per_entity", 1),
        entity_share=float(need("entity_share", 0.5)),
        entity_rate=need("entity_rate", 1.0),
        noise_multiplier=noise,
    )


_UNITS = ("records", "users", "entities", "users+entities", "names", "users+names", "tokens")
_FOR_EVERY_EVENT = ("protect", "noise_multiplier", "steps", "delta", "curves", "plot")
_FOR_ALL = ("degrees", "as_json", "overwrite")


def _refuse_unused(given: Mapping[str, Any], used: Set[str], where: str) -> None:
    """Stop rather than price something else than what was asked for."""
    for name, value in given.items():
        asked = value is not None and value is not False
        if asked and name not in used and name not in _FOR_ALL:
            raise UsageError(
                f"--{name.replace('_', '-')} has no meaning for {where}; leave it out."
            )


def _print(found: Any) -> None:
    table = simple_table("one", "epsilon", "no less than", "accountant", "TPR at FPR 1 %", "0.1 %")
    for unit, cost in found.prices.items():
        gains = [percent(gain.tpr) for gain in found.gains[unit]]
        table.add_row(unit, up(cost.epsilon), down(cost.lower), cost.accountant, *gains)
    standing = found.prices[found.protect].standing
    out.print(
        f"[bold]{found.steps:,} steps, delta {up(found.delta)}, standing: {standing}[/bold]\n"
    )
    out.print(table)
    out.print(f"\n{found.sentence()}")
    if math.isfinite(found.prices[found.protect].epsilon):
        left = found.left()
        out.print(f"Protection: {left.grade}. {left.verdict} {left.figures}")
    main = found.prices[found.protect]
    if main.beside:
        out.print(f"{main.beside[0].upper()}{main.beside[1:]}, for {found.protect}.")
    for title, heading, curve in (
        ("steps", f"epsilon for {found.protect} over steps", found.over_steps),
        ("users", "epsilon over the number of users who share an entity", found.over_degree),
    ):
        if curve:
            out.print(f"\n[bold]{heading}[/bold]")
            rows = simple_table(title, "epsilon")
            for at, cost in curve:
                rows.add_row(f"{at:,}", up(cost.epsilon))
            out.print(rows)


def _published(name: str, given: Mapping[str, Any], as_json: bool) -> None:
    from tacit.replication.published import PUBLISHED

    if name not in PUBLISHED:
        raise UsageError(f"published={name!r} is unknown; accepted: {', '.join(PUBLISHED)}.")
    formula = PUBLISHED[name]
    values, missing = {}, []
    for parameter in inspect.signature(formula).parameters.values():
        value = given.get(parameter.name)
        if value is not None:
            values[parameter.name] = value
        elif parameter.default is inspect.Parameter.empty:
            missing.append(f"--{parameter.name.replace('_', '-')}")
    _refuse_unused(given, {"published", "plot", *values}, f"--published {name}")
    if missing:
        raise UsageError(f"--published {name} needs {', '.join(missing)}.")
    found = formula(**values)
    if given["plot"]:
        _draw_published(name, values, given["plot"])
    result = found.as_dict()
    if name == "uedp":
        result["counterexample"] = _against(values)
    result["epsilon"] = {
        unit: value if math.isfinite(value) else "infinity"
        for unit, value in result["epsilon"].items()
    }
    if as_json:
        print_json(result)
        return
    for unit, value in found.epsilon.items():
        out.print(f"epsilon [bold]{up(value)}[/bold] for {unit}, standing: published")
    out.print(f"Source: {found.source}.")
    if found.is_bound:
        condition = found.condition.rstrip(".") or "none"
        out.print(f"This is a bound under a condition: {condition}.")
    else:
        out.print(f"[bold]This is not a bound.[/bold] {found.why_not}")
    if "counterexample" in result:
        out.print(result["counterexample"]["sentence"])


def _draw_published(name: str, values: Mapping[str, Any], to: Path) -> None:
    """A picture of what is claimed over steps, and of what is certainly lost with that noise."""
    from tacit.replication.published import over_steps
    from tacit.reports.plots import save
    from tacit.reports.price_curves import published_figure

    with progress("Drawing", None):
        lines = over_steps(name, values)
        if name == "uedp":
            lines["certainly lost where all users name the entity"] = [
                (steps, _against({**values, "steps": steps})["epsilon_at_least"])
                for steps, _ in next(iter(lines.values()))
            ]
        save(published_figure(f"epsilon as published ({name})", lines), to)
    say(f"picture: {to}")


def _against(values: Mapping[str, Any]) -> dict[str, Any]:
    """A case in the same setting in which more is certainly lost than the formula says."""
    from tacit.replication.counterexample import Instance, lower_bound

    names = ("users", "users_per_step", "entity_rate", "noise_multiplier")
    instance = Instance(holders=int(values["users"]), **{name: values[name] for name in names})
    found = lower_bound(instance, values["steps"], values.get("delta", 1e-5))
    return {
        "holders": instance.holders,
        "epsilon_at_least": found,
        "sentence": f"With exactly this noise, an entity that all {int(values['users']):,} users "
        f"name has epsilon of at least {down(found)}.",
    }


def _counterexample(as_json: bool) -> None:
    from tacit.replication.counterexample import PAPER, counterexample_table

    with progress("Computing", None):
        rows = counterexample_table()
    if as_json:
        print_json(
            {
                "setting": dict(PAPER),
                "rows": [asdict(row) | {"contradicts": row.contradicts} for row in rows],
            }
        )
        return
    out.print(
        "The published UeDP bound against a one-dimensional case with exactly its noise: users who "
        "name the entity hold a plain record that pulls one way and a record with the entity that "
        "pulls the other way twice as hard.\n"
    )
    table = simple_table("users who share it", "steps", "claimed", "certainly at least", "")
    for row in rows:
        verdict = "[bold red]contradicted[/bold red]" if row.contradicts else ""
        table.add_row(
            f"{row.holders:,}", f"{row.steps:,}", up(row.claimed), down(row.at_least), verdict
        )
    out.print(table)
