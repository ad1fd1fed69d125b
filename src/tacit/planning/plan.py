"""A public promise, made before looking: whom to protect, how, and at what price.

Every field of a plan is public. A plan never sees a corpus; what it may know about the data is the
owner graph, and that only under fixed-graph adjacency, which holds the graph fixed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tacit.errors import DataError, PrivacyRefused, TacitError, UsageError
from tacit.files import require_file
from tacit.privacy.accounting.pricing import Price, calibrate, price, price_all
from tacit.privacy.arguments import require_small_delta
from tacit.privacy.budget import Budget
from tacit.privacy.certificates.documents import canonical_digest
from tacit.privacy.events import (
    AnyEvent,
    Flat,
    MentionSubstitution,
    NotPrivate,
    Public,
    ReplaceOne,
    SampledGaussian,
    Selective,
    Unit,
    UserClip,
)
from tacit.privacy.rounding import up
from tacit.registry import did_you_mean

Mechanism: TypeAlias = Literal[
    "userclip", "flat", "selective", "redact-then-private", "residual-tokens"
]
_ON_MASKED_TEXT: tuple[Mechanism, ...] = ("redact-then-private", "residual-tokens")
"""What trains without noise on text whose sensitive tokens are masked, beside its noisy steps."""

Rate = Annotated[float, Field(gt=0, le=1)]
Cap = Annotated[int, Field(ge=1, le=10**9)]
Positive = Annotated[float, Field(gt=0, le=1e12)]


class Plan(BaseModel):
    """What is promised and how it will be kept.

    >>> plan = Plan(protect="users", epsilon=3, steps=100, user_rate=0.1, users=1000)
    >>> plan.event(2.0).event
    'sampled-gaussian'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    protect: Annotated[Unit, Field(description="Whom the promise is about.")]
    mechanism: Annotated[
        Mechanism | None,
        Field(
            description="userclip (default) or flat where entities are protected; selective, "
            "residual-tokens or redact-then-private (default) where tokens are."
        ),
    ] = None
    adjacency: Annotated[
        Literal["fixed-graph", "by-degree"],
        Field(
            description="fixed-graph: caps, and the table of who names whom is not hidden. "
            "by-degree: no caps, one price for each number of users who share an entity."
        ),
    ] = "fixed-graph"
    epsilon: Annotated[Positive, Field(description="Target for what is protected.")]
    targets: Annotated[
        dict[Unit, Positive],
        Field(description="Further targets, such as {users: 2, entities: 8}."),
    ] = {}
    delta: Annotated[float, Field(gt=0, le=0.01)] = 1e-5
    kinds: Annotated[
        tuple[str, ...] | None, Field(description="Kinds of entities to protect; all if not given.")
    ] = None
    entity_list: Annotated[
        str | None,
        Field(
            description="A file of entity names or ids, one a line: only those are protected. A "
            "run's plan holds a keyed digest of it instead."
        ),
    ] = None
    steps: Annotated[int, Field(ge=1, le=10**9)]
    user_rate: Annotated[
        Rate | None, Field(description="Poisson sampling rate of users in a step.")
    ] = None
    record_rate: Annotated[
        Rate | None, Field(description="Poisson sampling rate of records in a step.")
    ] = None
    entity_rate: Annotated[
        Rate,
        Field(description="Poisson sampling rate of entities; below 1 is priced, not trained."),
    ] = 1.0
    users_per_entity: Annotated[
        Cap, Field(description="Cap k: an entity is kept in at most so many users.")
    ] = 1
    entity_share: Annotated[
        float,
        Field(
            gt=0,
            le=2,
            description="Tau: the most one entity can move one user's update, as a share of the "
            "clip norm. 2 is plain clipping.",
        ),
    ] = 0.5
    users_per_name: Annotated[
        int, Field(ge=1, le=256, description="Names: one is shown in at most so many users (k).")
    ] = 2
    names_per_user: Annotated[
        int, Field(ge=1, le=256, description="Names: of a user at most so many are shown (m).")
    ] = 4
    name_share: Annotated[
        float,
        Field(
            ge=0,
            le=2,
            description="Names: the most one shown name can move its user's update, as a share of "
            "the clip norm (tau). 0 shows none: every marked name is replaced by an invented one.",
        ),
    ] = 0.0
    shown_kinds: Annotated[
        tuple[str, ...] | None,
        Field(
            description="Names: only those of these kinds are ever shown, such as [ORG, GPE]; all "
            "kinds if not given."
        ),
    ] = None
    public_entities: Annotated[
        tuple[str, ...],
        Field(
            description="Names: harmless ones (countries, the own company, mailing lists) that are "
            "always shown, and not protected."
        ),
    ] = ()
    records_per_user_entity: Annotated[
        Cap, Field(description="Cap on one user's records that name one entity (userclip).")
    ] = 1
    records_per_user: Annotated[
        Cap | None, Field(description="Cap m on the records of one user; needed by flat.")
    ] = None
    records_per_entity: Annotated[
        Cap | None, Field(description="Cap on the records of one entity; needed by flat.")
    ] = None
    records_per_step: Annotated[
        Cap | None,
        Field(
            description="A drawn user gives at most so many records in a step, chosen afresh by "
            "coins; all of them if not given."
        ),
    ] = None
    segments: Annotated[
        Cap, Field(description="Cap on the sensitive segments of one record (selective).")
    ] = 4
    states: Annotated[
        int, Field(ge=0, le=16, description="Hidden states passed between segments (LSTM: 2).")
    ] = 2
    clip_norm: Annotated[
        Positive, Field(description="Norm to which a unit's update is clipped.")
    ] = 1.0
    clip_quantile: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="The clip norm follows this quantile of units' norms, privately, and "
            "clip_norm is where it begins; it stays as it is if not given.",
        ),
    ] = None
    precondition: Annotated[
        bool,
        Field(
            description="Gradients are scaled before they are clipped, entry by entry, by the "
            "sizes that earlier steps released (scale-then-privatize)."
        ),
    ] = False
    user_weight_cap: Annotated[
        Cap | None,
        Field(
            description="Users with fewer records than this weigh less; all weigh 1 if not given."
        ),
    ] = None
    users: Annotated[
        Cap | None,
        Field(description="Public denominator: how many users there are, as known in advance."),
    ] = None
    records: Annotated[
        Cap | None,
        Field(description="Public denominator: how many records there are, as known in advance."),
    ] = None
    noise_multiplier: Annotated[
        float | None,
        Field(
            ge=0, le=1e9, description="Noise over clip norm; found from the targets if not given."
        ),
    ] = None
    select: Annotated[
        Literal["last", "best"],
        Field(
            description="best: the start, the last and the averaged weights are compared on the "
            "training users, with noise, and the best are kept; the targets cover it."
        ),
    ] = "last"
    selection_noise: Annotated[
        float | None,
        Field(gt=0, le=1e9, description="Noise of that comparison; found if not given."),
    ] = None
    seed: Annotated[
        int, Field(ge=0, description="Seed of the choice which records the caps keep.")
    ] = 0

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UsageError(_explain(error)) from None

    @model_validator(mode="after")
    def _consistent(self) -> "Plan":
        for problem in _problems(self):
            raise UsageError(problem)
        # Users count for records and tokens too: each of them wrote at least one record.
        if self.users is not None:
            require_small_delta(self.delta, self.users, "users")
        if self.records is not None and self.protect in ("records", "tokens"):
            require_small_delta(self.delta, self.records, "records")
        return self

    @property
    def limits(self) -> dict[Unit, float]:
        """The target for every unit that has one."""
        return {self.protect: self.epsilon, **self.targets}

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units that the plan's releases bound."""
        if self.protect in ("records", "users", "tokens"):
            return (self.protect,)
        if self.about_names:
            return ("users", "names", "users+names")
        return ("users", "entities", "users+entities")

    @property
    def about_names(self) -> bool:
        """Whether names are substituted, so that every record is kept."""
        return "names" in self.protect

    @property
    def budget(self) -> Budget:
        """The targets as a budget that a ledger can ask."""
        return Budget(self.limits, self.delta, steps=self.steps)

    @property
    def sampled(self) -> Literal["users", "records"]:
        """What Poisson sampling draws in a step."""
        return "users" if self.user_rate is not None else "records"

    @property
    def sampling_rate(self) -> float:
        """The rate of that sampling."""
        return float((self.user_rate if self.sampled == "users" else self.record_rate) or 0)

    @property
    def declared_units(self) -> int | None:
        """How many of them there are, as the plan declares it."""
        return self.users if self.sampled == "users" else self.records

    @property
    def by_degree(self) -> int | None:
        """The number of users up to which an entity is promised for, where no cap is used."""
        return self.users_per_entity if self.adjacency == "by-degree" else None

    @property
    def caps(self) -> dict[str, int]:
        """What bounding must enforce on the owner graph; nothing where no caps are used."""
        if self.adjacency == "by-degree" or "entities" not in self.protect:
            return {}
        caps = {"records_per_user": self.records_per_user}
        if self.mechanism == "flat":
            caps["records_per_entity"] = self.records_per_entity
        else:
            caps["users_per_entity"] = self.users_per_entity
            if self.record_clip is not None:
                caps["records_per_user_entity"] = self.records_per_user_entity
        return {name: cap for name, cap in caps.items() if cap is not None}

    @property
    def record_clip(self) -> float | None:
        """The norm to which each record is clipped first, so that an entity's share holds.

        With r records of a user naming one entity, each clipped to C before the user's sum is
        clipped to the clip norm, that entity moves the user by at most r C: clipping is a
        projection on a ball and never lengthens a difference.
        """
        if self.mechanism != "userclip" or self.entity_share >= 2:
            return None
        return self.entity_share * self.clip_norm / self.records_per_user_entity

    def event(self, noise_multiplier: float | None = None) -> AnyEvent:
        """What one step releases; the noise is the plan's own if none is given."""
        noise = self.noise_multiplier if noise_multiplier is None else noise_multiplier
        if noise is None:
            raise UsageError("The plan has no noise_multiplier yet; calibrate it first.")
        return self._sum_of(self.sampling_rate, noise)

    def selection(self) -> AnyEvent | None:
        """What the comparison releases that `select: best` makes; None without one.

        A bounded sum of the same units as a step's, over everybody, with noise of its own.
        """
        if self.select == "last":
            return None
        if self.selection_noise is None:
            raise UsageError("The plan has no selection_noise yet; calibrate it first.")
        return self._sum_of(1.0, self.selection_noise, compared=True)

    def _sum_of(self, rate: float, noise: float, *, compared: bool = False) -> AnyEvent:
        """The event of a noisy sum over units that are drawn at this rate.

        Models are `compared` on texts in which no name is shown.
        """
        if self.about_names:
            return MentionSubstitution(
                user_rate=rate,
                users_per_name=self.users_per_name,
                names_per_user=self.names_per_user,
                name_share=0.0 if compared else self.name_share,
                noise_multiplier=noise,
            )
        if self.protect in ("records", "users"):
            return SampledGaussian(unit=self.protect, rate=rate, noise_multiplier=noise)
        if self.mechanism == "selective":
            return Selective(
                noise_multiplier=noise,
                state_noise_multiplier=noise,
                segments=self.segments,
                states=self.states,
                rate=rate,
            )
        if self.mechanism in _ON_MASKED_TEXT:
            return ReplaceOne(unit="tokens", rate=rate, noise_multiplier=noise)
        if self.mechanism == "flat":
            return Flat(
                record_rate=rate,
                records_per_user=int(self.records_per_user or 0),
                records_per_entity=int(self.records_per_entity or 0),
                noise_multiplier=noise,
            )
        return UserClip(
            user_rate=rate,
            users_per_entity=self.users_per_entity,
            entity_share=self.entity_share,
            entity_rate=self.entity_rate,
            noise_multiplier=noise,
        )

    def releases(self) -> dict[AnyEvent, int]:
        """All that the plan means to release."""
        planned: dict[AnyEvent, int] = {self.event(): self.steps}
        selection = self.selection()
        if selection is not None:
            # Where everybody takes part in every step, the two may be the same event.
            planned[selection] = planned.get(selection, 0) + 1
        if self.mechanism in _ON_MASKED_TEXT:
            what = "training on text whose sensitive tokens are masked"
            planned[NotPrivate(what=what, spares=("tokens",))] = 1
        return planned

    def digest(self) -> str:
        """A SHA-256 of every field."""
        return canonical_digest(self.model_dump(mode="json"))


def _problems(plan: Plan) -> Iterator[str]:
    """What is wrong with fields that are each right by themselves, and the mechanism's default."""
    entities, whose = "entities" in plan.protect, f"protect={plan.protect}"
    accepted: tuple[Mechanism | None, ...] = (None,)
    if entities:
        accepted = ("userclip", "flat")
    elif plan.protect == "tokens":
        accepted = (*_ON_MASKED_TEXT, "selective")
    if plan.mechanism is None and accepted[0] is not None:
        object.__setattr__(plan, "mechanism", accepted[0])
    if plan.mechanism not in accepted:
        names = " or ".join(str(a) for a in accepted if a) or "none: leave it out"
        yield f"mechanism={plan.mechanism} does not protect {plan.protect}; accepted: {names}."
    yield from _sampling_problems(plan)
    if plan.entity_list is not None and not entities:
        yield f"entity_list is about entities; {whose} needs none."
    if plan.kinds is not None and not (entities or plan.about_names):
        yield f"kinds is about entities; {whose} needs none."
    yield from _names_problems(plan)
    if plan.protect in plan.targets:
        yield f"targets repeats {plan.protect}, which epsilon is for; give one of the two."
    flat = plan.mechanism == "flat"
    for name in ("records_per_user", "records_per_entity") if flat else ():
        if getattr(plan, name) is None:
            yield f"mechanism=flat needs {name}; give a whole number from 1 up."
    if flat and plan.entity_rate < 1:
        yield "entity_rate below 1 has no meaning for flat; leave it out."
    if plan.adjacency == "by-degree":
        yield from _by_degree_problems(plan)
    if plan.select == "best" and plan.protect == "tokens":
        yield "select=best compares whole records, which protect=tokens does not bound; leave it."
    if plan.selection_noise is not None and plan.select == "last":
        yield "selection_noise goes with select=best; leave it out."
    for unit in plan.limits:
        if unit not in plan.units:
            yield f"{whose} bounds {', '.join(plan.units)}; leave out the target for {unit}."


def _sampling_problems(plan: Plan) -> Iterator[str]:
    """What is wrong with who is drawn, and with what is kept and clipped of them."""
    entities, whose = "entities" in plan.protect, f"protect={plan.protect}"
    flat = plan.mechanism == "flat"
    by_user = plan.protect == "users" or plan.about_names or (entities and not flat)
    rate, other = ("user_rate", "record_rate") if by_user else ("record_rate", "user_rate")
    if getattr(plan, rate) is None:
        yield f"{whose} needs {rate}; give a probability above 0, up to 1."
    if getattr(plan, other) is not None:
        yield f"{other} has no meaning where {rate} draws; leave it out."
    if not entities and plan.records_per_user is not None:
        yield (
            f"records_per_user drops records by a rule over the whole graph, and {whose} does not "
            "hold the graph fixed; leave it out"
            + (", or give records_per_step." if by_user else ".")
        )
    if plan.records_per_step is not None and not by_user:
        yield (
            f"records_per_step is about drawn users, and {whose} here draws records; leave it out."
        )
    adapts = plan.protect in ("users", "records") or (plan.about_names and plan.name_share == 0)
    if plan.clip_quantile is not None and not adapts:
        yield f"clip_quantile is for users and records; {whose} needs a fixed clip_norm."
    if plan.clip_quantile is not None and plan.user_weight_cap is not None:
        yield "clip_quantile counts units as equals, and user_weight_cap weighs them; give one."
    if plan.clip_quantile is not None and plan.precondition:
        yield "precondition keeps the clip norm as it is, and clip_quantile moves it; give one."
    if plan.precondition and plan.about_names:
        yield f"precondition is not done for names, and {whose} is about them; leave it out."


_OF_NAMES = ("users_per_name", "names_per_user", "name_share", "shown_kinds", "public_entities")
_OF_ENTITIES = ("users_per_entity", "entity_share", "records_per_user_entity", "entity_rate")


def _names_problems(plan: Plan) -> Iterator[str]:
    """A field of the one way to protect entities has no meaning in the other."""
    other, whom = (_OF_ENTITIES, "entities") if plan.about_names else (_OF_NAMES, "names")
    for name in other if plan.about_names or plan.protect != "tokens" else _OF_NAMES:
        if getattr(plan, name) != Plan.model_fields[name].default:
            yield f"{name} is about {whom}, and protect={plan.protect} is not; leave it out."
    if plan.shown_kinds is not None and plan.name_share == 0:
        yield "shown_kinds says which names may be shown, and name_share=0 shows none; give one."


def _by_degree_problems(plan: Plan) -> Iterator[str]:
    if "entities" not in plan.protect:
        yield f"adjacency=by-degree is about entities; protect={plan.protect} needs none of it."
    elif plan.records_per_user is not None:
        yield (
            "records_per_user drops records by the graph, which by-degree adjacency does not "
            "allow; leave it out or use fixed-graph."
        )
    elif plan.mechanism == "flat":
        yield "mechanism=flat needs caps, which by-degree adjacency does not allow."
    elif plan.entity_share < 2:
        yield (
            f"entity_share={plan.entity_share:g} needs a cap on the records that name one entity, "
            "which by-degree adjacency does not allow; give 2 or use fixed-graph."
        )
    elif plan.users is None:
        yield (
            "adjacency=by-degree needs users, the public denominator: the graph may not be counted."
        )


# --- what training needs beside a plan that is right in itself ----------------------------------


def require_trainable(plan: Plan, counted: int | None = None) -> None:
    """Refuse what training would refuse of a plan.

    `counted` is the number of users (records, where these are sampled) that are kept, where that is
    known and the guarantee holds the graph fixed.
    """
    if plan.entity_rate < 1:
        raise UsageError("entity_rate below 1 is priced but not trained; leave it at 1.")
    name, declared = plan.sampled, plan.declared_units
    fixed = "entities" in plan.protect and plan.adjacency == "fixed-graph"
    fixed = fixed or plan.protect == "tokens"  # replacing tokens, neighbours have as many records
    if declared is None and not fixed:
        raise UsageError(
            f"protect={plan.protect} needs {name}, the public denominator: how many there are "
            "may not be counted from the data. Give a round number that you knew before."
        )
    if counted is not None and plan.users is None and plan.records is None:
        require_small_delta(plan.delta, counted, name)
    units = counted if declared is None else declared
    if units is not None:
        require_sample(name, plan.sampling_rate, units)


def require_sample(name: str, rate: float, units: int) -> None:
    """Refuse a sampling rate that draws less than one unit: noise alone teaches nothing."""
    if rate * units < 1:
        raise UsageError(
            f"{name[:-1]}_rate={rate:g} of {units:,} {name} draws {rate * units:.2g} in a step, "
            f"hence nobody in most of them; give {1 / units:.2g} or more."
        )


def public_denominator(plan: Plan, counted: int) -> float:
    """The expected size of a step's Poisson sample: a public constant.

    The sampling rate times the declared number of units, or times those counted where the guarantee
    holds the graph fixed; anything else is refused.
    """
    require_trainable(plan, counted)
    declared = plan.declared_units
    return plan.sampling_rate * (counted if declared is None else declared)


# --- files ------------------------------------------------------------------------------------

CALIBRATED = "calibrated"
"""The part of a plan's file that says what it was calibrated as; see `tacit.planning.pipeline`."""


def read_plan(path: Path, overrides: Mapping[str, Any] | None = None) -> Plan:
    """The plan of a YAML file, with single fields replaced."""
    fields = plan_file_fields(path)
    fields.pop(CALIBRATED, None)
    return Plan(**fields | dict(overrides or {}))


def plan_file_fields(path: Path) -> dict[str, Any]:
    """The fields of a plan's file, not yet checked."""
    try:
        fields = yaml.safe_load(require_file(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise DataError(f"{path} is not YAML; a plan is `name: value` lines.") from None
    if not isinstance(fields, dict):
        raise DataError(f"{path} is not a plan; a plan is `name: value` lines.")
    return {str(k): v for k, v in fields.items()}


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """`["steps=10", "epsilon=2"]` as fields; values are YAML."""
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise UsageError(f"{pair!r} is not an override; write NAME=VALUE.")
        try:
            fields[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UsageError(f"{name}={value!r} is not a value; write it as in YAML.") from None
    return fields


def plan_yaml(plan: Plan) -> str:
    """The plan as a YAML file that `read_plan` gives back."""
    fields = plan.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _explain(error: ValidationError) -> str:
    # A misspelt field explains a missing one, so it comes first.
    found = error.errors(include_url=False, include_context=False)
    first = min(found, key=lambda e: e["type"] != "extra_forbidden")
    name = ".".join(str(part) for part in first["loc"]) or "plan"
    if first["type"] == "extra_forbidden":
        return f"{name!r} is not a field of a plan.{did_you_mean(name, list(Plan.model_fields))}"
    if first["type"] == "missing":
        says = Plan.model_fields[name].description
        return f"The plan needs {name}" + (f" ({says.rstrip('.').lower()})." if says else ".")
    if first["type"] == "value_error":
        return str(first["msg"]).removeprefix("Value error, ")
    given = repr(first["input"])
    given = given if len(given) <= 60 else given[:60] + "..."
    reason = first["msg"][0].lower() + first["msg"][1:]
    return f"{name}={given} is not accepted: {reason}."


# --- arithmetic -------------------------------------------------------------------------------


def calibrated(plan: Plan, *, also: Mapping[AnyEvent, int] | None = None) -> Plan:
    """The plan with the least noise that meets every target, re-priced and never above it.

    `also` is what was released before by the model that the run goes on from: the targets hold for
    both together.
    """
    plan = _with_selection(plan)
    if plan.noise_multiplier is None:
        least = least_noise(plan, also=also)
        plan = plan.model_copy(update={"noise_multiplier": least})
    for unit, target in plan.limits.items():
        cost = price([*plan.releases().items(), *(also or {}).items()], unit, plan.delta)
        if not float(up(cost.epsilon)) <= target:  # as it will be written
            raise PrivacyRefused(
                f"noise_multiplier={plan.noise_multiplier:g} gives epsilon {up(cost.epsilon)} for "
                f"{unit}, over the target {target:g}; leave it out to have it found."
            )
    return plan


def least_noise(plan: Plan, *, also: Mapping[AnyEvent, int] | None = None) -> float:
    """The least noise multiplier that meets every target of the plan, with `also` besides."""
    plan = _with_selection(plan)
    planned = plan.model_copy(update={"noise_multiplier": 1.0}).releases()
    besides: list[tuple[AnyEvent, int]] = [
        (e, n) for e, n in planned.items() if isinstance(e, NotPrivate | Public)
    ]
    selection = plan.selection()
    besides += [(selection, 1)] if selection is not None else []
    besides += (also or {}).items()
    found = []
    for unit, target in plan.limits.items():
        try:
            found.append(calibrate(plan.event, target, plan.delta, unit, plan.steps, also=besides))
        except TacitError as error:
            raise type(error)(f"epsilon={target:g} for {unit}: {error}") from None
    return max(found)


SELECTION_SHARE = 5.0
"""The comparison of `select: best` has so many times the noise that would spend everything on it.

Squares of what Gaussian sums cost add up, so training is left with all but 1/25 of the budget: its
noise grows by about 2 %.
"""


def _with_selection(plan: Plan) -> Plan:
    """The plan with the noise of its comparison, where it has one: known before any text is."""
    if plan.select == "last" or plan.selection_noise is not None:
        return plan
    alone = max(
        calibrate(
            lambda noise: plan._sum_of(1.0, noise, compared=True), target, plan.delta, unit, 1
        )
        for unit, target in plan.limits.items()
    )
    return plan.model_copy(update={"selection_noise": float(up(SELECTION_SHARE * alone))})


def prices(plan: Plan) -> dict[Unit, Price]:
    """The price of the whole plan for every unit it bounds."""
    found = price_all(plan.releases(), plan.delta)
    return {unit: cost for unit, cost in found.items() if unit in plan.units}
