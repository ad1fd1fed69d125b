"""How much changes when a user leaves and a name is replaced: never more than the lemmas say.

A rule says, for a corpus, each user's base texts and the texts of each shown pair. Between
neighbours base texts of other users may not change at all, and of their shown pairs at most so
many. Eleven rules that look alike, each wrong in one way, are planted and found out.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from tacit.corpus import Corpus
from tacit.detection.kinds import known_kinds
from tacit.detection.mentions import Entity, Mention, fold
from tacit.detection.names.network import load
from tacit.detection.provenance import UNKNOWN
from tacit.detection.surrogates import keyed_number, reserved, surrogates
from tacit.errors import DataError
from tacit.planning.plan import Plan
from tacit.training.data.substitution import Marked, MarkedRecord, Name, Place, marked

KIND = "PERSON"
K, M, STEP = 1, 2, 7
PLAN = Plan(
    protect="users+names", epsilon=1, steps=1, user_rate=0.5, users=10,
    users_per_name=K, names_per_user=M, name_share=0.1,
)  # fmt: skip
INVENTED = surrogates(KIND)[:40]
PEOPLE = ("Bo", "Marguerite Pennyfeather", "Gerda Z", "Xi Wang Li", "Zoltan")

Records = tuple[tuple[str, tuple[str, ...]], ...]
"""Records: who wrote them, and the names in them, one after the other."""


@dataclass(frozen=True)
class Made:
    """What a rule makes of a corpus."""

    base: dict[str, tuple[str, ...]]
    pairs: dict[tuple[str, Name], tuple[str, ...]]


Rule = Callable[[Records], Made]


def corpus_of(records: Records) -> tuple[Corpus, list[Mention]]:
    rows, mentions = [], []
    for number, (user, names) in enumerate(records):
        text = "told"
        for name in names:
            start = len(text) + 1
            text += f" {name} and"
            mentions.append(Mention(str(number), start, start + len(name), KIND, "e1", 1.0, "t"))
        rows.append({"id": str(number), "user": user, "text": text})
    # the number of an entity counts first appearances: it must not matter
    return Corpus.from_records(rows), mentions


def marks(records: Records) -> Marked:
    corpus, mentions = corpus_of(records)
    return marked(PLAN, corpus, mentions, [])


def made_of(marks: Marked, pairs: Iterator[tuple[str, Name, tuple[int, ...]]]) -> Made:
    base: dict[str, tuple[str, ...]] = {}
    for row, record in enumerate(marks.records):
        base[record.user] = (*base.get(record.user, ()), marks.base(row))
    texts = {
        (user, name): tuple(marks.showing(row, name) for row in rows) for user, name, rows in pairs
    }
    return Made(base, texts)


def the_rule(records: Records) -> Made:
    own = marks(records)
    return made_of(own, iter(own.shown(STEP, users_per_name=K, names_per_user=M)))


def random_corpus(rng: random.Random) -> Records:
    users = rng.randint(2, 7)
    names = (*PEOPLE, *INVENTED[:1])
    few = rng.choice([1, 3, 8])
    records = []
    for user in range(users):
        for _ in range(rng.randint(1, 3)):
            told = tuple(rng.choice(names) for _ in range(rng.randint(0, few)))
            records.append((f"u{user}", told))
    rng.shuffle(records)
    return tuple(records)


def without_user(records: Records, user: str) -> Records:
    return tuple(record for record in records if record[0] != user)


def with_invented(records: Records, name: str, rng: random.Random) -> Records:
    """Every occurrence of a name, however it is spelled, replaced by some invented ones."""
    replaced = fold(name, KIND)
    return tuple(
        (user, tuple(rng.choice(INVENTED) if fold(n, KIND) == replaced else n for n in names))
        for user, names in records
    )


def neighbours(seed: int) -> Iterator[tuple[Records, Records, str | None, int]]:
    """Two corpora, who left, and how many pairs of others may differ."""
    rng = random.Random(seed)
    while True:
        one = random_corpus(rng)
        name = rng.choice(PEOPLE)
        user = rng.choice(sorted({u for u, _ in one}))
        kind = rng.randrange(3)
        if kind == 0:
            yield one, with_invented(one, name, rng), None, K
        elif kind == 1:
            yield one, without_user(one, user), user, M
        else:
            yield one, without_user(with_invented(one, name, rng), user), user, K + M


def changes(rule: Rule, one: Records, other: Records, left: str | None) -> float:
    """How many pairs of other users differ; infinitely many where a base text does.

    A pair that is shown in both with other texts has lost one residual and gained another.
    """
    a, b = rule(one), rule(other)
    if any(a.base[user] != b.base[user] for user in a.base if user != left):
        return float("inf")
    count = 0
    for pair in {*a.pairs, *b.pairs}:
        if pair[0] != left and a.pairs.get(pair) != b.pairs.get(pair):
            count += 2 if pair in a.pairs and pair in b.pairs else 1
    return count


def test_no_more_changes_than_the_lemmas_say() -> None:
    most = {K: 0.0, M: 0.0, K + M: 0.0}
    for (one, other, left, allowed), _ in zip(neighbours(1), range(2500), strict=False):
        found = changes(the_rule, one, other, left)
        assert found <= allowed
        most[allowed] = max(most[allowed], found)
    assert most[K] == K  # the counts are reached, so fewer would not do
    assert most[M] == M
    assert most[K + M] >= K + M - 1


def test_caps_hold_and_every_name_gets_its_turn() -> None:
    records = tuple((f"u{n}", (PEOPLE[0], PEOPLE[n % 5], INVENTED[0])) for n in range(9))
    own, showed = marks(records), set()
    for step in range(60):
        shown = own.shown(step, users_per_name=K, names_per_user=1)
        for name in {one.name for one in shown}:
            assert sum(one.name == name for one in shown) <= K
        for user in {one.user for one in shown}:
            assert sum(one.user == user for one in shown) <= 1
        assert all(one.name.folded not in reserved(KIND) for one in shown)
        showed |= {(one.user, one.name.folded) for one in shown}
    assert len(showed) == len({(u, fold(n, KIND)) for u, ns in records for n in ns[:2]})


def test_a_text_shows_one_name_and_nothing_of_the_others() -> None:
    own = marks((("ann", ("Bo", "Gerda Z", "BO", "Zoltan")),))
    base, shown = own.base(0), own.showing(0, Name(KIND, "bo"))
    for name in ("Bo", "Gerda", "BO", "Zoltan"):
        assert name not in base.split()
    assert shown.split()[1] == "Bo"
    assert "BO" in shown.split()
    assert "Gerda" not in shown
    assert base != shown


def test_about_one_invented_name_in_four_is_learnt_and_every_shown_one() -> None:
    names = ("Bo", "Gerda Z", "BO", "Zoltan")
    own = marks(tuple((f"u{n}", names) for n in range(200)))
    places = 0
    for row in range(200):
        base, shown = own.base(row), own.showing(row, Name(KIND, "bo"))
        found = [base[start:end] for start, end in own.unlearnt(row)]
        assert all(fold(name, KIND) in reserved(KIND) for name in found)
        places += len(found)
        left = [shown[start:end] for start, end in own.unlearnt(row, Name(KIND, "bo"))]
        assert set(left) <= set(found)
        assert not {"Bo", "BO"} & set(left)
    assert 0.7 < places / 800 < 0.8
    others = marks(tuple((f"u{n}", ("Ann", "Li Wu", "X", "Al")) for n in range(200)))
    assert [own.unlearnt(row) for row in range(200)] == [others.unlearnt(r) for r in range(200)]


def test_reserved_is_asked_of_folded_spellings_and_before_aliases() -> None:
    corpus, mentions = corpus_of((("ann", (INVENTED[0].upper(), "Bo")),))
    own = marked(PLAN, corpus, mentions, [])
    assert [place.name for place in own.records[0].places] == [None, Name(KIND, "bo")]


def test_overlapping_marks_hide_all_that_any_of_them_covers() -> None:
    corpus = Corpus.from_records([{"id": "0", "user": "ann", "text": "Anna Maria Lopez left"}])
    two = [
        Mention("0", 0, 10, KIND, "e1", 1.0, "a"),
        Mention("0", 5, 16, "ORG", "e2", 1.0, "b"),
    ]
    own = marked(PLAN, corpus, two, [])
    assert own.base(0).endswith(" left")
    for word in ("Anna", "Maria", "Lopez"):
        assert word not in own.base(0)


def test_what_overlapping_marks_make_up_is_never_shown() -> None:
    """It is the name of neither, and the spelling of both may be somebody's alias."""
    corpus = Corpus.from_records([{"id": "0", "user": "ann", "text": "Anna Maria Lopez left"}])
    two = [Mention("0", 0, 10, KIND, "e1", 1.0, "a"), Mention("0", 5, 16, KIND, "e2", 1.0, "b")]
    assert [place.name for place in marked(PLAN, corpus, two, []).records[0].places] == [None]
    inner = [two[0], Mention("0", 5, 10, KIND, "e2", 1.0, "b")]
    assert marked(PLAN, corpus, inner, []).records[0].places[0].name == Name(KIND, "anna maria")


def entity(number: int, name: str) -> Entity:
    return Entity(f"e{number}", KIND, name, 1, 1)


def test_names_are_joined_by_an_alias_file_and_by_nothing_else() -> None:
    """A table of another corpus, or one that was edited, would join names that nobody is told of:
    replacing one of them would let users of the other move up."""
    corpus, mentions = corpus_of((("ann", ("Bo", "Boris")), ("eve", ("Boris",))))
    mentions = [replace(m, entity=f"e{n}") for m, n in zip(mentions, (1, 2, 2), strict=True)]
    tables = [[entity(1, "boris"), entity(2, "boris")], [entity(1, "boris"), entity(2, "bo")]]
    for table in tables:
        with pytest.raises(DataError, match="no alias file is recorded"):
            marked(PLAN, corpus, mentions, table)
    said = replace(UNKNOWN, aliases="digest")
    joined = marked(PLAN, corpus, mentions, tables[0], provenance=said)
    assert {p.name for r in joined.records for p in r.places} == {Name(KIND, "boris")}
    for table in ([], [entity(1, " BO "), entity(2, "Boris")], [entity(2, "boris")]):
        own = marked(PLAN, corpus, mentions, table)
        assert [p.name for p in own.records[0].places] == [Name(KIND, "bo"), Name(KIND, "boris")]


def test_one_spelling_is_one_name_everywhere() -> None:
    corpus, mentions = corpus_of((("ann", ("Bo",)), ("eve", ("Bo",))))
    two = [mentions[0], replace(mentions[1], entity="e2")]
    said = replace(UNKNOWN, aliases="digest")
    table = [entity(1, "bo"), entity(2, "bo li")]
    with pytest.raises(DataError, match="one spelling under two names"):
        marked(PLAN, corpus, two, table, provenance=said)
    assert len({p.name for r in marked(PLAN, corpus, two, []).records for p in r.places}) == 1


def test_a_mention_of_an_unknown_kind_is_refused_not_left_in() -> None:
    corpus, mentions = corpus_of((("ann", ("Bo",)),))
    with pytest.raises(DataError, match="a kind that is not known"):
        marked(PLAN, corpus, [replace(mentions[0], kind="HERO")], [])


def test_every_kind_has_hundreds_of_invented_names() -> None:
    for kind in known_kinds():
        assert len(surrogates(kind)) >= 250
        assert len(reserved(kind)) == len(surrogates(kind))


def test_an_invented_organisation_says_nothing_of_what_it_does() -> None:
    """No word of it is known as part of any name; the same of what people are called."""
    known = load().listed
    assert not any(known(word) for name in surrogates("ORG") for word in name.split())
    assert all(known(word) for name in surrogates("PERSON")[::99] for word in name.split())


# --- rules that look alike ----------------------------------------------------------------------


def _pairs(
    own: Marked, nominated: dict[str, dict[Name, set[int]]], most: int = K
) -> Iterator[tuple[str, Name, tuple[int, ...]]]:
    """The first holders of every name, by the keyed order."""
    for name in sorted({name for names in nominated.values() for name in names}):
        holders = [user for user, names in nominated.items() if name in names]
        holders.sort(key=lambda user: keyed_number(b"k", "rank", name.folded, user))
        for user in holders[:most]:
            yield user, name, tuple(sorted(nominated[user][name]))


def _places(own: Marked) -> dict[str, list[tuple[int, int, Name | None]]]:
    """The places of each user: the row, the number of the place, what stands there."""
    found: dict[str, list[tuple[int, int, Name | None]]] = {}
    for row, record in enumerate(own.records):
        for number, place in enumerate(record.places):
            found.setdefault(record.user, []).append((row, number, place.name))
    return found


def _first(
    own: Marked, places: list[tuple[int, int, Name | None]], most: int
) -> dict[Name, set[int]]:
    """The names at the first places of a user."""

    def key(place: tuple[int, int, Name | None]) -> int:
        record = own.records[place[0]]
        return keyed_number(b"k", "nominate", record.user, record.number, place[1])

    chosen: dict[Name, set[int]] = {}
    for row, _, name in sorted(places, key=key)[:most]:
        if name is not None:
            chosen.setdefault(name, set()).add(row)
    return chosen


def by_hand(records: Records) -> Made:
    """The rule once more in few lines: what the wrong ones below are changed from."""
    own = marks(records)
    nominated = {user: _first(own, places, M) for user, places in _places(own).items()}
    return made_of(own, _pairs(own, nominated))


def names_nominated(records: Records) -> Made:
    """Nominates names instead of places."""
    own = marks(records)
    nominated: dict[str, dict[Name, set[int]]] = {}
    for user, places in _places(own).items():
        names = sorted({name for _, _, name in places if name is not None})
        names.sort(key=lambda name: keyed_number(b"k", user, name.folded))
        nominated[user] = {n: {row for row, _, name in places if name == n} for n in names[:M]}
    return made_of(own, _pairs(own, nominated))


def refilled(records: Records) -> Made:
    """Skips reserved names when it fills a user's places."""
    own = marks(records)
    nominated = {
        user: _first(own, [place for place in places if place[2] is not None], M)
        for user, places in _places(own).items()
    }
    return made_of(own, _pairs(own, nominated))


def capped_after_ranking(records: Records) -> Made:
    """Ranks all, then cuts what a user shows."""
    own = marks(records)
    nominated = {user: _first(own, places, 99) for user, places in _places(own).items()}
    kept: dict[str, int] = {}
    pairs: list[tuple[str, Name, tuple[int, ...]]] = []
    for user, name, rows in _pairs(own, nominated, most=99):
        shown = sum(one[1] == name for one in pairs)
        if kept.get(user, 0) < 1 and shown < K:
            kept[user] = kept.get(user, 0) + 1
            pairs.append((user, name, rows))
    return made_of(own, iter(pairs))


def without_a_cap(records: Records) -> Made:
    """Lets a user nominate everything."""
    own = marks(records)
    nominated = {user: _first(own, places, 99) for user, places in _places(own).items()}
    return made_of(own, _pairs(own, nominated))


def all_at_once(records: Records) -> Made:
    """Shows all names of a record together, so that one residual depends on the others."""
    own, made = marks(records), by_hand(records)
    pairs = {}
    for user, name in made.pairs:
        others = " ".join(sorted(n.folded for u, n in made.pairs if u == user))
        pairs[user, name] = (*made.pairs[user, name], others)
    assert own.records
    return replace(made, pairs=pairs)


def _with_base(records: Records, surrogate: Callable[[int, MarkedRecord, int, Place], str]) -> Made:
    made, own = by_hand(records), marks(records)
    base: dict[str, tuple[str, ...]] = {}
    for row, record in enumerate(own.records):
        text = " ".join(surrogate(row, record, i, p) for i, p in enumerate(record.places))
        base[record.user] = (*base.get(record.user, ()), text)
    return replace(made, base=base)


def matched_in_length(records: Records) -> Made:
    """Chooses an invented name as long as the one that stood there."""
    return _with_base(records, lambda row, record, i, place: "x" * (place.end - place.start))


def numbered_in_the_corpus(records: Records) -> Made:
    """Gives records their number in the corpus as an id."""
    return _with_base(records, lambda row, record, i, place: str(keyed_number(b"k", row, i)))


def numbered_names(records: Records) -> Made:
    """Ranks the holders of a name by the number of its first appearance."""
    own = marks(records)
    nominated = {user: _first(own, places, M) for user, places in _places(own).items()}
    number: dict[Name, int] = {}
    for record in own.records:
        for place in record.places:
            if place.name is not None:
                number.setdefault(place.name, len(number))

    def ranked() -> Iterator[tuple[str, Name, tuple[int, ...]]]:
        for name in number:
            holders = [user for user, names in nominated.items() if name in names]
            holders.sort(key=lambda user: keyed_number(b"k", "rank", number[name], user))
            for user in holders[:K]:
                yield user, name, tuple(sorted(nominated[user][name]))

    return made_of(own, ranked())


def reserved_as_written(records: Records) -> Made:
    """Asks of spellings as written whether they are invented."""
    shouted = tuple(
        (user, tuple(n.upper() if n in INVENTED and len(user) else n for n in names))
        for user, names in records
    )
    corpus, _ = corpus_of(shouted)
    rows = [
        MarkedRecord(r.user, r.number, text, tuple(
            replace(p, name=p.name or Name(KIND, fold(text[p.start : p.end], KIND)))
            for p in r.places
        ))
        for r, text in zip(marks(shouted).records, corpus.column("text").to_pylist(), strict=True)
    ]  # fmt: skip
    own = Marked(rows, b"k")
    nominated = {user: _first(own, places, M) for user, places in _places(own).items()}
    return made_of(own, _pairs(own, nominated))


def cut_before_rendering(records: Records) -> Made:
    """Cuts the text as it was written, and nominates what is left."""
    own = marks(records)
    kept = [replace(r, places=tuple(p for p in r.places if p.end <= 24)) for r in own.records]
    short = Marked(kept, own.key)
    nominated = {user: _first(short, places, M) for user, places in _places(short).items()}
    return made_of(own, _pairs(short, nominated))


def near_copies_dropped(records: Records) -> Made:
    """Leaves out a record whose template another user has already."""
    seen: dict[int, str] = {}
    kept = []
    for user, names in records:
        if seen.setdefault(len(names), user) == user:
            kept.append((user, names))
    return by_hand(tuple(kept))


def test_the_rule_by_hand_is_right() -> None:
    for (one, other, left, allowed), _ in zip(neighbours(2), range(400), strict=False):
        assert changes(by_hand, one, other, left) <= allowed


@pytest.mark.parametrize(
    "rule",
    [
        names_nominated, refilled, capped_after_ranking, without_a_cap, all_at_once,
        matched_in_length, numbered_in_the_corpus, numbered_names, reserved_as_written,
        cut_before_rendering, near_copies_dropped,
    ],
    ids=lambda rule: rule.__name__,
)  # fmt: skip
def test_a_rule_that_looks_alike_is_found_out(rule: Rule) -> None:
    for (one, other, left, allowed), _ in zip(neighbours(3), range(3000), strict=False):
        try:
            found = changes(rule, one, other, left)
        except KeyError:  # a user of whom nothing is left: base texts differ
            found = float("inf")
        if found > allowed:
            return
    pytest.fail("no neighbours contradict it")


def test_what_a_user_shows_does_not_depend_on_who_is_drawn() -> None:
    """Ranking only those who are drawn lets one user's coin move others; it is never told."""
    rng = random.Random(4)
    differs = 0
    for _ in range(200):
        records = random_corpus(rng)
        drawn = {records[0][0], *(user for user, _ in records if rng.random() < 0.5)}
        everybody = the_rule(records).pairs
        among = the_rule(tuple(r for r in records if r[0] in drawn)).pairs
        differs += {p for p in everybody if p[0] in drawn} != set(among)
    assert differs > 0  # so a rule that were told would be another one
