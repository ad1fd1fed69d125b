"""The ledger is never behind what was released: kills, tears, edits, two writers, budgets."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import DataError, PrivacyRefused, TacitError
from tacit.privacy import ledger as ledger_module
from tacit.privacy.events import AnyEvent, Public, SampledGaussian, UserClip
from tacit.privacy.ledger import Ledger, Releases, read_ledger

ABOUT = {"plan": "p", "corpus": "c"}
STEP = UserClip(user_rate=0.05, users_per_entity=2, entity_share=0.5, noise_multiplier=8.0)
OTHER = SampledGaussian(unit="users", rate=0.1, noise_multiplier=1.0)


def write_some(path: Path, count: int) -> None:
    with Ledger(path, ABOUT) as ledger:
        for _ in range(count):
            ledger.charge(STEP)


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked process; what a killed process leaves behind is real."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(7)
    return child


def test_entries_come_back_in_order_with_their_phases(tmp_path: Path) -> None:
    path = tmp_path / "run" / "ledger.jsonl"
    with Ledger(path, ABOUT) as ledger:
        ledger.charge(Public(what="warm start"), phase="pretrain")
        ledger.charge(STEP)
        digest = ledger.digest
    with Ledger(path, ABOUT) as ledger:
        assert ledger.digest == digest
        ledger.charge(STEP)
        ledger.charge(OTHER, phase="more")
        assert len(ledger) == 4
    contents = read_ledger(path)
    assert list(contents.phases()) == ["pretrain", "train", "more"]
    assert contents.releases("train") == {STEP: 2}
    assert contents.releases() == {Public(what="warm start"): 1, STEP: 2, OTHER: 1}
    assert not contents.torn


# In a small process of its own: forking one that has read torch takes a tenth of a second.
KILLING = """
import json, os, shutil, signal, sys
from pathlib import Path
from tacit.privacy import ledger
from tacit.privacy.events import UserClip
folder, most, about, step = Path(sys.argv[1]), int(sys.argv[2]), *map(json.loads, sys.argv[3:])
for cut in range(most + 1):
    shutil.copy(folder / "before", folder / f"{cut}.jsonl")
    if os.fork() == 0:
        def die(file, data):
            file.write(data[:cut])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        ledger._write = die
        with ledger.Ledger(folder / f"{cut}.jsonl", about) as contents:
            contents.charge(UserClip(**step))
    assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
"""


def test_killed_at_every_byte_of_a_write(tmp_path: Path) -> None:
    """A real process dies by SIGKILL after each possible number of bytes of an entry."""
    path = tmp_path / "ledger.jsonl"
    write_some(path, 2)
    before = path.read_bytes()
    write_some(path, 1)
    most = len(path.read_bytes()) - len(before)
    assert most > 200
    (tmp_path / "before").write_bytes(before)
    given = [str(tmp_path), str(most), json.dumps(ABOUT), STEP.model_dump_json()]
    subprocess.run([sys.executable, "-c", KILLING, *given], check=True)
    for cut in range(most + 1):
        path = tmp_path / f"{cut}.jsonl"
        contents = read_ledger(path)
        assert len(contents.entries) == (3 if cut == most else 2)
        assert contents.torn == (0 < cut < most)
        write_some(path, 1)  # resume: the torn line goes, the chain goes on
        assert len(read_ledger(path).entries) == (4 if cut == most else 3)


@pytest.mark.parametrize("charged_first", [True, False])
def test_killed_at_any_moment_the_ledger_is_ahead(tmp_path: Path, charged_first: bool) -> None:
    """Whatever was released has its entry; at most one entry waits for its release.

    As often as it is killed here, a release that does not wait for its entry is found out.
    """
    kills = 24 if charged_first else 500  # it ends with the first that is found out
    assert _ahead(tmp_path / "ledger.jsonl", charged_first, kills) == charged_first


def _ahead(path: Path, charged_first: bool, kills: int) -> bool:
    rng = random.Random(5)
    released = 0
    for _ in range(kills):
        reader, writer = os.pipe()

        def work(writer: int = writer) -> None:
            with Ledger(path, ABOUT) as ledger:
                while True:
                    if charged_first:
                        ledger.charge(STEP)
                    os.write(writer, b".")  # the release leaves
                    if not charged_first:
                        ledger.charge(STEP)

        child = in_child(work)
        released += len(os.read(reader, 1))  # it works by now, however busy the machine is
        time.sleep(rng.uniform(0, 0.008))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            released += len(pipe.read())
        entries = (
            len(read_ledger(path).entries) if path.exists() and b"\n" in path.read_bytes() else 0
        )
        if entries < released:
            return False
        released = entries  # the one in flight is charged for ever
    assert released > kills
    return True


def test_an_unfinished_first_line_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"ledger": 1, "abo')
    with pytest.raises(DataError, match="never finished"):
        read_ledger(path)
    write_some(path, 1)
    assert len(read_ledger(path).entries) == 1


def test_two_writers_are_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, ABOUT), pytest.raises(PrivacyRefused, match="one writer"):
        Ledger(path, ABOUT).__enter__()
    reader, writer = os.pipe()

    def hold() -> None:
        with Ledger(path, ABOUT):
            os.write(writer, b".")
            time.sleep(60)

    child = in_child(hold)
    os.read(reader, 1)
    with pytest.raises(PrivacyRefused, match="one writer"):
        Ledger(path, ABOUT).__enter__()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    write_some(path, 1)
    os.close(reader)
    os.close(writer)


def test_a_ledger_of_another_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write_some(path, 1)
    with pytest.raises(PrivacyRefused, match="another plan"):
        Ledger(path, ABOUT | {"plan": "q"}).__enter__()
    write_some(path, 1)  # and the refusal left no lock behind


def test_as_many_entries_are_not_yet_the_same_entries(tmp_path: Path) -> None:
    """A checkpoint goes on with the ledger that it knows: by the hash of its last entry."""
    with Ledger(tmp_path / "own.jsonl", ABOUT) as own, Ledger(tmp_path / "o.jsonl", ABOUT) as other:
        last = [own.charge(event).hash for event in (STEP, STEP)][-1]
        for event in (STEP, OTHER):
            other.charge(event)
        own.require_entries(2, last)
        own.require_entries(0, "")
        for ledger, count in ((other, 2), (own, 3), (own, 1)):
            with pytest.raises(PrivacyRefused, match="not the ledger of the checkpoint"):
                ledger.require_entries(count, last)


def test_charging_needs_an_open_unchanged_ledger_and_a_known_event(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, ABOUT)
    with pytest.raises(PrivacyRefused, match="not open"):
        ledger.charge(STEP)
    with ledger:
        ledger.charge(STEP)
        with pytest.raises(PrivacyRefused, match="not an event"):
            ledger.charge({"event": "free-lunch"})  # type: ignore[arg-type]
        path.write_bytes(path.read_bytes() + b"x")
        with pytest.raises(PrivacyRefused, match="changed"):
            ledger.charge(STEP)


def test_a_full_disk_stops_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, ABOUT) as ledger:
        ledger.charge(STEP)

        def full(file: IO[bytes], data: bytes) -> None:
            file.write(data[:20])
            file.flush()
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(ledger_module, "_write", full)
            with pytest.raises(PrivacyRefused, match="No space left"):
                ledger.charge(STEP)
        # Half a line is on disk, so this process may not go on; a resumed one may.
        with pytest.raises(PrivacyRefused, match="nothing may be released"):
            ledger.charge(STEP)
    write_some(path, 1)
    assert len(read_ledger(path).entries) == 2


def three_at_most(releases: Releases, event: AnyEvent) -> None:
    if sum(releases.values()) >= 3:
        raise PrivacyRefused("over the budget")


def test_the_budget_is_asked_before_the_entry(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):  # a resumed run remembers what was spent
        with Ledger(path, ABOUT, allows=three_at_most) as ledger:
            while len(ledger) < 3:
                ledger.charge(STEP)
            with pytest.raises(PrivacyRefused, match="over the budget"):
                ledger.charge(STEP)
    assert len(read_ledger(path).entries) == 3


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


TAMPERINGS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "removed": lambda lines: [*lines[:2], *lines[3:]],
    "reordered": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "repeated": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "edited": lambda lines: [lines[0], lines[1].replace(b"8.0", b"9.0"), *lines[2:]],
    "first line edited": lambda lines: [lines[0].replace(b'"p"', b'"q"'), *lines[1:]],
    "first line gone": lambda lines: lines[1:],
    "blank line": lambda lines: [lines[0], b"\n", *lines[1:]],
    "doubled name": lambda lines: [
        lines[0], lines[1].replace(b'{"entry"', b'{"entry": 9, "entry"'), *lines[2:]
    ],
    "not a number": lambda lines: [lines[0], lines[1].replace(b"8.0", b"NaN"), *lines[2:]],
    "an array": lambda lines: [lines[0], b"[]\n", *lines[1:]],
    "not text": lambda lines: [lines[0], b"\xff\xfe\n", *lines[1:]],
    "deep": lambda lines: [lines[0], b"[" * 5000 + b"\n", *lines[1:]],
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
def test_every_change_to_a_line_is_seen(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ledger.jsonl"
    write_some(path, 4)
    path.write_bytes(b"".join(TAMPERINGS[name](lines_of(path))))
    with pytest.raises(DataError):
        read_ledger(path)
    with pytest.raises(TacitError):
        Ledger(path, ABOUT).__enter__()


def rehash(fields: dict[str, object]) -> bytes:
    """What a forger who knows the format would write."""
    return ledger_module._line({k: v for k, v in fields.items() if k != "hash"})


@pytest.mark.parametrize(
    "change",
    [
        {"event": {"event": "free-lunch"}},
        {"event": {"event": "sampled-gaussian", "unit": "users", "rate": 2, "noise_multiplier": 1}},
        {"event": 5},
        {"phase": 5},
        {"entry": True},
        {"entry": 1.0},
        {"extra": 1},
    ],
)
def test_a_well_hashed_line_that_says_nonsense_is_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    path = tmp_path / "ledger.jsonl"
    write_some(path, 1)
    first, entry = lines_of(path)
    path.write_bytes(first + rehash(json.loads(entry) | change))
    with pytest.raises(TacitError):
        read_ledger(path)


@pytest.fixture(scope="module")
def three_entries(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "ledger.jsonl"
    write_some(path, 3)
    return path.read_bytes()


@settings(max_examples=600)
@given(st.data())
def test_no_mangled_ledger_is_ever_shorter_without_a_word(
    tmp_path_factory: pytest.TempPathFactory, three_entries: bytes, data: st.DataObject
) -> None:
    """Cut, overwrite or insert bytes anywhere: refused, or torn at the end, or unchanged."""
    path = tmp_path_factory.getbasetemp() / "mangled.jsonl"
    content = three_entries
    path.write_bytes(content)
    contents = read_ledger(path)
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, min(len(content), start + 40)))
    path.write_bytes(content[:start] + data.draw(st.binary(max_size=20)) + content[stop:])
    try:
        mangled = read_ledger(path)
    except TacitError:
        return
    if mangled.entries == contents.entries:
        return
    # Cutting whole lines off the end cannot be seen here: the certificate keeps the digest.
    assert mangled.entries == contents.entries[: len(mangled.entries)]
    assert mangled.digest != contents.digest
