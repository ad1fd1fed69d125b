"""Facts about releases: one frozen value for each thing that may leave the training data.

An event holds what was carried out and no opinion about what it costs; `privacy/accounting`
prices it. Every field is public. Noise multipliers are the standard deviation of the noise
divided by the clip norm of one unit, never by a sensitivity.

    SampledGaussian   Poisson-sampled records or users, clipped, summed, noised
    UserClip          Poisson-sampled users; each entity in at most k users, moving each by tau
    Flat              Poisson-sampled records; at most k_u per user and k_e per entity
    MentionSubstitution   Poisson-sampled users whose texts have surrogates for names; few names
                      are shown, each in at most k users, moving each by tau
    ReplaceOne        as SampledGaussian, stated for neighbours that replace one unit
    Selective         one pass over a record whose sensitive segments alone are noised
    SelectivePart     one release of such a pass: the gradient of a segment, or a hidden state
    SanitizedText     texts whose words were replaced one by one, under local privacy by distance
    Public            a release that reads no protected data: free
    NotPrivate        a release without protection: infinite, except for the units it spares

Nothing else exists: `read_event` refuses what it does not know.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tacit.errors import PrivacyRefused, UsageError

Unit: TypeAlias = Literal[
    "records", "users", "entities", "users+entities", "names", "users+names", "tokens"
]
Adjacency: TypeAlias = Literal["add-or-remove", "zero-out", "substitute", "replace"]

UNITS: tuple[Unit, ...] = get_args(Unit)

MOST = 10**9  # above this a count is a mistake, and double precision would no longer be exact

Rate = Annotated[float, Field(ge=0, le=1, description="a probability between 0 and 1")]
Noise = Annotated[float, Field(ge=0, le=1e100, description="a finite number, 0 or more")]
Count = Annotated[int, Field(ge=0, le=MOST, description=f"a whole number from 0 to {MOST}")]
Words = Annotated[str, Field(min_length=1, max_length=500, description="a short description")]


class _Release(BaseModel):
    """What every event shares: frozen, strict, and one error family for malformed values."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UsageError(_explain(type(self), error)) from None

    @property
    def bounds(self) -> tuple[Unit, ...]:
        """The units whose loss this release bounds; for every other unit it costs infinity."""
        return ()

    @property
    def adjacency(self) -> Adjacency | None:
        """What "one neighbour apart" means for the bound; None where it does not matter."""
        return None


class SampledGaussian(_Release):
    """Poisson-sampled units, each clipped to norm 1, summed, plus Gaussian noise.

    Guarantee: for neighbours that add or remove one unit, if the sum is divided by a public
    constant only.
    """

    event: Literal["sampled-gaussian"] = "sampled-gaussian"
    unit: Annotated[Literal["records", "users"], Field(description="'records' or 'users'")]
    rate: Rate
    noise_multiplier: Noise

    @property
    def bounds(self) -> tuple[Unit, ...]:
        return (self.unit,)

    @property
    def adjacency(self) -> Adjacency:
        return "add-or-remove"


class UserClip(_Release):
    """Poisson-sampled users, clipped per user, where one entity moves few users by little.

    An entity is in at most `users_per_entity` users and changes the clipped update of each by at
    most `entity_share` of the clip norm (2 for plain clipping, less with a pre-clip); with
    `entity_rate` below 1 a record takes part only if all its entities were drawn.

    Guarantee: for fixed-graph neighbours in which every record of a user, of an entity, or of
    both contributes zero.
    """

    event: Literal["user-clip"] = "user-clip"
    user_rate: Rate
    users_per_entity: Count
    entity_share: Annotated[
        float,
        Field(ge=0, le=2, description="a number from 0 to 2 (2 is plain clipping)"),
    ]
    entity_rate: Rate = 1.0
    noise_multiplier: Noise

    @property
    def bounds(self) -> tuple[Unit, ...]:
        return ("users", "entities", "users+entities")

    @property
    def adjacency(self) -> Adjacency:
        return "zero-out"


class Flat(_Release):
    """Poisson-sampled records, each clipped to norm 1, with caps per user and per entity.

    Guarantee: for fixed-graph neighbours in which every record of a user, of an entity, or of
    both contributes zero.
    """

    event: Literal["flat"] = "flat"
    record_rate: Rate
    records_per_user: Count
    records_per_entity: Count
    noise_multiplier: Noise

    @property
    def bounds(self) -> tuple[Unit, ...]:
        return ("users", "entities", "users+entities")

    @property
    def adjacency(self) -> Adjacency:
        return "zero-out"


Shown = Annotated[int, Field(ge=0, le=256, description="a whole number from 0 to 256")]


class MentionSubstitution(_Release):
    """Poisson-sampled users, clipped, whose texts have surrogates in place of marked names.

    Of every user at most `names_per_user` names are shown, and every name in at most
    `users_per_name` users; a shown name moves its user's vector by at most `name_share` of the
    clip norm. With a share of 0 no name is shown at all.

    Guarantee: for neighbours in which one user is absent, every marked occurrence of one name is
    replaced by reserved names of its kind, or both. Nothing but the marks is held fixed.
    """

    event: Literal["mention-substitution"] = "mention-substitution"
    user_rate: Rate
    users_per_name: Shown
    names_per_user: Shown
    name_share: Annotated[float, Field(ge=0, le=2, description="a number from 0 to 2")]
    noise_multiplier: Noise

    @property
    def shows(self) -> bool:
        """Whether any name is ever shown."""
        return self.name_share > 0 and self.users_per_name > 0 and self.names_per_user > 0

    @property
    def bounds(self) -> tuple[Unit, ...]:
        return ("users", "names", "users+names")

    @property
    def adjacency(self) -> Adjacency:
        return "substitute"


class ReplaceOne(_Release):
    """Poisson-sampled units, clipped, summed, noised; stated for replacing one unit by another.

    `tokens` means: one record's sensitive tokens are replaced, its plain tokens stay.

    Guarantee: for neighbours that replace the content of one unit; the sample is drawn for this
    release alone and never shown.
    """

    event: Literal["replace-one"] = "replace-one"
    unit: Annotated[
        Literal["records", "users", "tokens"],
        Field(description="'records', 'users' or 'tokens'"),
    ]
    rate: Rate
    noise_multiplier: Noise

    @property
    def bounds(self) -> tuple[Unit, ...]:
        return (self.unit,)

    @property
    def adjacency(self) -> Adjacency:
        return "replace"


class Selective(_Release):
    """One pass over a record: noised updates on sensitive segments, plain updates elsewhere.

    Each of at most `segments` sensitive segments releases one clipped gradient with noise and
    `states` clipped hidden states with their own noise. Who takes part is visible in the plain
    updates, so `rate` (Poisson participation) is a public coin and amplifies nothing more.

    Guarantee: for neighbours that replace the sensitive tokens of one record, with the same mask
    and the same plain tokens.
    """

    event: Literal["selective"] = "selective"
    noise_multiplier: Noise
    state_noise_multiplier: Noise
    segments: Count
    states: Count
    rate: Rate = 1.0

    @property
    def bounds(self) -> tuple[Unit, ...]:
        return ("tokens",)

    @property
    def adjacency(self) -> Adjacency:
        return "replace"


class SelectivePart(_Release):
    """One release of a `Selective` pass: a segment's gradient, or one of its hidden states.

    Its first fields are those of the pass. Every pass, also one that nobody takes part in, begins
    with the gradient of the first segment: as many as there are of that one, so many passes there
    were, and each is priced as a whole. The parts of a pass share one public coin, so pricing them
    one by one, as if each had a coin of its own, would not be a bound.

    Guarantee: as `Selective`, for all parts of a pass together.
    """

    event: Literal["selective-part"] = "selective-part"
    noise_multiplier: Noise
    state_noise_multiplier: Noise
    segments: Count
    states: Count
    rate: Rate = 1.0
    segment: Annotated[
        int, Field(ge=1, le=MOST, description="a whole number, 1 or more: which segment")
    ]
    state: Annotated[
        int, Field(ge=0, le=MOST, description="0 for the gradient, or the number of the state")
    ] = 0

    @model_validator(mode="after")
    def _inside(self) -> "SelectivePart":
        if self.segment > self.segments or self.state > self.states:
            raise UsageError(
                f"segment={self.segment}, state={self.state} is no part of a pass with "
                f"segments={self.segments} and states={self.states}."
            )
        return self

    @property
    def whole(self) -> Selective:
        """The pass that this is a part of."""
        return Selective(
            noise_multiplier=self.noise_multiplier,
            state_noise_multiplier=self.state_noise_multiplier,
            segments=self.segments,
            states=self.states,
            rate=self.rate,
        )

    @property
    def first(self) -> "SelectivePart":
        """The part with which that pass begins."""
        return self.model_copy(update={"segment": 1, "state": 0})

    @property
    def bounds(self) -> tuple[Unit, ...]:
        return ("tokens",)

    @property
    def adjacency(self) -> Adjacency:
        return "replace"


def part_of(whole: Selective, segment: int, state: int = 0) -> SelectivePart:
    """One release of a pass: the gradient of a segment (state 0), or one of its states."""
    fields = whole.model_dump(exclude={"event"})
    return SelectivePart(**fields, segment=segment, state=state)


def whole_passes(releases: "Mapping[AnyEvent, int]") -> "dict[AnyEvent, int]":
    """The same releases with the parts of passes put together; a stopped pass counts as whole.

    Parts of which there are more than beginnings cannot be told apart from further passes, and
    are refused.
    """
    made: dict[AnyEvent, int] = {}
    for event, count in releases.items():
        if not isinstance(event, SelectivePart):
            made[event] = made.get(event, 0) + count
        elif event == event.first:
            made[event.whole] = made.get(event.whole, 0) + count
        elif count > releases.get(event.first, 0):
            raise PrivacyRefused(
                f"There are {count:,} releases of segment {event.segment} (state {event.state}) "
                f"in {releases.get(event.first, 0):,} passes; a pass has each of its parts once."
            )
    return made


class SanitizedText(_Release):
    """Texts whose words were each replaced at random, independently (metric local DP).

    The promise is about single words and grows with their distance, so it bounds no unit of the
    other events: in their currency this release costs infinity.

    Guarantee: metric local differential privacy for `santext`, `fbdd` and `random`; its
    utility-optimized form for `santext+`.
    """

    event: Literal["sanitized-text"] = "sanitized-text"
    mechanism: Annotated[
        Literal["santext", "santext+", "fbdd", "random"],
        Field(description="'santext', 'santext+', 'fbdd' or 'random'"),
    ]
    epsilon_per_distance: Noise
    replace_plain_rate: Rate | None = None
    vocabulary: Annotated[int, Field(ge=2, le=MOST, description="a whole number, 2 or more")]
    output_vocabulary: Annotated[int, Field(ge=2, le=MOST, description="a whole number, 2 or more")]
    unknown: Annotated[
        Literal["random", "drop", "keep"], Field(description="'random', 'drop' or 'keep'")
    ]
    unit: Annotated[Literal["words", "pieces"], Field(description="'words' or 'pieces'")] = "words"
    """What is replaced: words, or the pieces of words that a model's tokenizer makes."""


class Public(_Release):
    """A release that reads no protected data: it costs nothing for any unit."""

    event: Literal["public"] = "public"
    what: Words

    @property
    def bounds(self) -> tuple[Unit, ...]:
        return UNITS


class NotPrivate(_Release):
    """A release that reads protected data without protection: it costs infinity.

    `spares` names the units it cannot depend on: a phase that sees only text whose sensitive
    tokens are masked spares `tokens`, and neither records, users nor entities.
    """

    event: Literal["not-private"] = "not-private"
    what: Words
    spares: Annotated[
        tuple[Literal["tokens"], ...],
        Field(max_length=1, strict=False, description="nothing, or the list ['tokens']"),
    ] = ()

    @property
    def bounds(self) -> tuple[Unit, ...]:
        return self.spares

    @property
    def adjacency(self) -> Adjacency | None:
        # What is spared stays hidden only if mask and plain tokens are the same.
        return "replace" if self.spares else None


AnyEvent: TypeAlias = (
    SampledGaussian
    | UserClip
    | Flat
    | MentionSubstitution
    | ReplaceOne
    | Selective
    | SelectivePart
    | SanitizedText
    | Public
    | NotPrivate
)
Event: TypeAlias = Annotated[AnyEvent, Field(discriminator="event")]

_KINDS: dict[str, type[AnyEvent]] = {
    kind.model_fields["event"].default: kind for kind in get_args(AnyEvent)
}


def read_event(data: Mapping[str, Any] | str | bytes) -> AnyEvent:
    """The event that a JSON object (or its text) describes.

    An unknown `event` is refused for privacy: what has no price must not be released. A known
    one with malformed fields is a usage error that names the field.
    """
    fields = _json_object(data)
    name = fields.get("event")
    if not isinstance(name, str) or name not in _KINDS:
        raise PrivacyRefused(
            f"event={_short(name)} has no price; known events: {', '.join(sorted(_KINDS))}. "
            "Record the release as one of these, or as 'not-private'."
        )
    return _KINDS[name](**fields)


def write_event(event: AnyEvent) -> dict[str, Any]:
    """The event as a JSON object; `read_event` gives the same event back."""
    return require_event(event).model_dump(mode="json")


def require_event(thing: object) -> AnyEvent:
    """The event itself, if it is one of ours; anything else is refused."""
    if type(thing) not in _KINDS.values():
        raise PrivacyRefused(
            f"A {type(thing).__name__} is not an event and has no price; "
            f"known events: {', '.join(sorted(_KINDS))}."
        )
    return thing  # type: ignore[return-value]


def require_unit(unit: object) -> Unit:
    """The unit, if it is one of the seven words for what is protected."""
    if not isinstance(unit, str) or unit not in UNITS:
        raise UsageError(f"unit={_short(unit)} is not protected; give one of {', '.join(UNITS)}.")
    return unit


def _json_object(data: object) -> dict[str, Any]:
    if isinstance(data, str | bytes):
        try:
            data = json.loads(data)
        except (ValueError, RecursionError):
            raise UsageError("The event is not JSON; give one JSON object.") from None
    if not isinstance(data, Mapping):
        raise UsageError(f"The event is a {type(data).__name__}; give one JSON object.")
    if not all(isinstance(name, str) for name in data):
        raise UsageError("The event has a field whose name is not text; give one JSON object.")
    return dict(data)


def _explain(kind: type[BaseModel], error: ValidationError) -> str:
    """One sentence for the first thing wrong: what was given, what is accepted."""
    first = error.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "value"
    label = kind.model_fields["event"].default if "event" in kind.model_fields else kind.__name__
    if first["type"] == "missing":
        return f"The event '{label}' needs {name}; give {_accepted(kind, name)}."
    if first["type"] == "extra_forbidden":
        known = ", ".join(field for field in kind.model_fields if field != "event")
        return f"The event '{label}' has no field {_short(name)}; its fields are {known}."
    given = _short(first["input"])
    return f"{name}={given} is not accepted in '{label}'; give {_accepted(kind, name)}."


def _accepted(kind: type[BaseModel], name: str) -> str:
    field = kind.model_fields.get(name)
    return (field.description if field else None) or "another value"


def _short(value: object, limit: int = 60) -> str:
    try:
        text = repr(value)
    except (
        ValueError,
        RecursionError,
    ):  # whole numbers of more than 4300 digits have no text
        return f"a {type(value).__name__}"
    return text if len(text) <= limit else text[:limit] + "..."
