"""Events are facts: frozen, strict, readable back, and unknown ones are refused."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import PrivacyRefused, TacitError, UsageError
from tacit.privacy.accounting.pricing import price
from tacit.privacy.events import (
    UNITS,
    AnyEvent,
    Flat,
    MentionSubstitution,
    NotPrivate,
    Public,
    ReplaceOne,
    SampledGaussian,
    SanitizedText,
    Selective,
    SelectivePart,
    UserClip,
    read_event,
    write_event,
)

EXAMPLES: list[AnyEvent] = [
    SampledGaussian(unit="records", rate=0.01, noise_multiplier=1.1),
    SampledGaussian(unit="users", rate=1, noise_multiplier=0),
    UserClip(user_rate=0.05, users_per_entity=2, entity_share=0.5, noise_multiplier=8),
    Flat(record_rate=0.05, records_per_user=4, records_per_entity=1, noise_multiplier=4),
    MentionSubstitution(
        user_rate=0.1, users_per_name=2, names_per_user=4, name_share=0.05, noise_multiplier=3
    ),
    ReplaceOne(unit="tokens", rate=0.01, noise_multiplier=1),
    Selective(noise_multiplier=4, state_noise_multiplier=4, segments=2, states=2),
    SelectivePart(noise_multiplier=4, state_noise_multiplier=4, segments=2, states=2, segment=1),
    SanitizedText(
        mechanism="santext+",
        epsilon_per_distance=2,
        replace_plain_rate=0.3,
        vocabulary=9,
        output_vocabulary=8,
        unknown="random",
    ),
    Public(what="a tokenizer trained elsewhere"),
    NotPrivate(what="phase 1 on masked text", spares=("tokens",)),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.event)
def test_an_event_survives_json(event):
    text = json.dumps(write_event(event))
    assert read_event(text) == event
    assert read_event(text.encode()) == event
    assert hash(read_event(text)) == hash(event)
    assert set(event.bounds) <= set(UNITS)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.event)
def test_an_event_is_frozen(event):
    with pytest.raises(Exception, match="frozen"):
        event.event = "public"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"user_rate": 1.5}, "user_rate=1.5"),
        ({"user_rate": math.nan}, "user_rate=nan"),
        ({"user_rate": True}, "user_rate=True"),
        ({"user_rate": "0.05"}, "user_rate='0.05'"),
        ({"users_per_entity": -1}, "users_per_entity=-1"),
        ({"users_per_entity": 2.0}, "users_per_entity=2.0"),
        ({"users_per_entity": 10**5000}, "users_per_entity"),
        ({"entity_share": 2.1}, "entity_share=2.1"),
        ({"noise_multiplier": math.inf}, "noise_multiplier=inf"),
        ({"noise_multiplier": 10**400}, "noise_multiplier"),
        ({"noise": 8}, "no field 'noise'"),
    ],
)
def test_a_malformed_field_is_named(fields, says):
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        read_event(write_event(EXAMPLES[2]) | fields)
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        UserClip(**({k: v for k, v in write_event(EXAMPLES[2]).items()} | fields))


def test_a_missing_field_is_named():
    with pytest.raises(UsageError, match="needs user_rate; give a probability"):
        UserClip(users_per_entity=2, entity_share=0.5, noise_multiplier=8)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["laplace", "", None, 3, ["public"], {"event": "public"}])
def test_an_unknown_event_is_refused_for_privacy(name):
    with pytest.raises(PrivacyRefused, match="has no price"):
        read_event({"event": name, "what": "x"})


@pytest.mark.parametrize("thing", ["public", None, 3, object(), {"event": "public"}, [1]])
def test_what_is_not_an_event_has_no_price(thing):
    with pytest.raises(TacitError):
        price([(thing, 1)], "users", 1e-5)


def test_a_subclass_cannot_smuggle_a_price_in():
    class Cheaper(SampledGaussian):
        pass

    with pytest.raises(PrivacyRefused, match="Cheaper"):
        price(Cheaper(unit="users", rate=0.1, noise_multiplier=1), "users", 1e-5)


def test_masked_text_spares_tokens_and_nothing_else():
    phase = NotPrivate(what="phase 1 on masked text", spares=("tokens",))
    assert price(phase, "tokens", 1e-5).epsilon == 0
    for unit in ("records", "users", "entities", "users+entities"):
        assert price(phase, unit, 1e-5).epsilon == math.inf


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300, max_value=10**320)
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
names = st.sampled_from([*write_event(EXAMPLES[2]), "unit", "rate", "what", "spares", "segments"])


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(EXAMPLES), names, json_values)
def test_whatever_a_field_holds_the_answer_is_an_event_or_a_clear_error(event, name, value):
    again, said = read_or_hear(write_event(event) | {name: value})
    if again is None:
        assert 0 < len(said) < 500
    else:
        assert read_event(json.dumps(write_event(again))) == again


def read_or_hear(fields):
    try:
        return read_event(fields), ""
    except TacitError as error:
        return None, str(error)


@settings(max_examples=200, deadline=None)
@given(st.one_of(json_values, st.text(), st.binary(), st.dictionaries(names, json_values)))
def test_whatever_is_read_never_fails_in_another_family(data):
    with pytest.raises(TacitError):
        read_event(data)
