"""Figures for docs/studies/benchmarks.md, each beside a yardstick measured in the same run.

Machines differ and are shared; a ratio travels better than a time.
"""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_sanitizing import sanitizing

RECORDS = 1_000_000
WORDS = "the quick brown fox jumps over a lazy dog my order is late again thanks".split()  # noqa: SIM905


def clock(work: Callable[[], object]) -> float:
    """Seconds of the process's own time on the CPU: what others do on the machine stays out."""
    start = time.process_time()
    work()
    return time.process_time() - start


def million(folder: Path) -> Path:
    """A million short records."""
    rng = random.Random(1)
    path = folder / "million.jsonl"
    with path.open("w") as out:
        for i in range(RECORDS):
            text = " ".join(rng.choices(WORDS, k=rng.randint(5, 15)))
            out.write(
                json.dumps({"id": i, "user": f"u{rng.randrange(100_000)}", "text": text}) + "\n"
            )
    return path


def reading(path: Path, folder: Path) -> list[tuple[str, str]]:
    """Reading against a plain loop over the lines."""
    from tacit.corpus.reading import read
    from tacit.corpus.writing import write

    with path.open() as lines:
        loop = clock(lambda: [json.loads(line) for line in lines])
    rows = []
    corpus = read(path)
    for name in ("million.jsonl", "million.csv", "million.parquet"):
        if name != path.name:
            write(corpus, folder / name)
        took = clock(lambda name=name: read(folder / name))
        rows.append(
            (
                f"read a million records, {Path(name).suffix}",
                f"{took:.1f} s, {took / loop:.2f} x a json.loads loop",
            )
        )
    rows.append(("memory to read them (own process)", memory(path)))
    return rows


MEMORY = """
import sys
from pathlib import Path
from tacit.corpus.reading import read
def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
before = peak()
corpus = read(sys.argv[1])
print((peak() - before) / corpus.table.nbytes, corpus.table.nbytes)
"""


def memory(path: Path) -> str:
    """Peak memory of a process that reads the file, less what it had, over the table's size."""
    command = [sys.executable, "-c", MEMORY, str(path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ratio, size = out.split()
    return f"{float(ratio):.1f} x the Arrow table ({int(size) / 1e6:.0f} MB)"


def describing(path: Path) -> list[tuple[str, str]]:
    """Near-copies against a pass that only splits words."""
    from tacit.corpus.description import find_near_duplicates
    from tacit.corpus.reading import read

    corpus = read(path)
    split = clock(lambda: [len(t.split()) for t in corpus.column("text").to_pylist()])
    took = clock(lambda: find_near_duplicates(corpus))
    return [
        (
            "near-copies among a million records",
            f"{took:.1f} s, {took / split:.1f} x splitting the words in Python",
        )
    ]


def detecting(folder: Path) -> list[tuple[str, str]]:
    """Each detector over dialogs, and over short records."""
    from tacit.corpora import customersim
    from tacit.corpus.reading import read
    from tacit.detection import detect
    from tacit.detection.tagger import tagger

    dialogs = customersim.generate(2000, 1)
    tagger.train(customersim.generate(300, 2), folder / "tagger")
    short = read(folder / "million.jsonl").take(range(50_000))
    rows = []
    for name in ("patterns", "lists", "names", f"tagger={folder / 'tagger'}"):
        label = name.partition("=")[0]
        long = clock(lambda name=name: detect(dialogs, name))
        quick = clock(lambda name=name: detect(short, name))
        rows.append(
            (
                f"detect with {label}",
                f"{len(dialogs) / long:,.0f} dialogs/s, {len(short) / quick:,.0f} short records/s",
            )
        )
    return rows


def bounding() -> list[tuple[str, str]]:
    """Caps on a graph of a million records, against reading that graph once in Python."""
    import numpy as np

    from tacit.owners import Owners
    from tacit.owners.bounding import bound

    rng = np.random.default_rng(0)
    users = rng.integers(0, 60_000, RECORDS)
    counts = rng.integers(0, 4, RECORDS)
    entities = np.minimum(rng.zipf(1.5, int(counts.sum())), 400_000)
    ends = np.cumsum(counts)
    rows_ = [
        (f"r{i}", f"u{users[i]}", {f"e{e}" for e in entities[ends[i] - counts[i] : ends[i]]})
        for i in range(RECORDS)
    ]
    owners = Owners.from_rows(rows_)
    once = clock(lambda: sum(len(e) for _, _, e in rows_))
    rows = []
    for k in (1, 8):
        took = clock(lambda k=k: bound(owners, users_per_entity=k, seed=0))
        rows.append(
            (
                f"bound a million records, k = {k}",
                f"{took:.1f} s, {took / once:.0f} x one pass over the graph",
            )
        )
    return rows


def pricing() -> list[tuple[str, str]]:
    """Prices, without the cache."""
    from tacit.privacy.accounting.pricing import curve_over_degree as by_degree
    from tacit.privacy.accounting.pricing import curve_over_steps, price
    from tacit.privacy.events import SampledGaussian, UserClip

    event = UserClip(user_rate=0.05, users_per_entity=2, entity_share=0.5, noise_multiplier=8.0)
    plain = SampledGaussian(unit="users", rate=0.05, noise_multiplier=2.0)
    steps = [50, 100, 200, 300, 400, 500]
    degrees = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    both = "users+entities"
    return [
        (
            "one price, users",
            f"{clock(lambda: price({plain: 500}, 'users', 1e-5, fresh=True)):.2f} s",
        ),
        (
            "one price, users+entities",
            f"{clock(lambda: price({event: 500}, both, 1e-5, fresh=True)):.2f} s",
        ),
        (
            "a curve over six numbers of steps",
            f"{clock(lambda: curve_over_steps(event, steps, both, 1e-5, fresh=True)):.1f} s",
        ),
        (
            "a curve over ten degrees",
            f"{clock(lambda: by_degree(event, degrees, both, 1e-5, 500, fresh=True)):.1f} s",
        ),
    ]


def training() -> list[tuple[str, str]]:
    """A private step over a plain one, with peers; then memory: the long part of all this."""
    script = str(Path(__file__).with_name("bench_training.py"))
    rows = []
    for option in ("--peers", "--memory"):
        command = [sys.executable, script, option]
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        for found in map(json.loads, out.splitlines()):
            title = f"{found.pop('model')}, {found.pop('way')}, {option.removeprefix('--')}"
            rows.append((title, ", ".join(f"{name} {value}" for name, value in found.items())))
    return rows


def methods() -> list[tuple[str, str]]:
    """A step of the papers' methods over a plain one, and one for names over one for users."""
    script = str(Path(__file__).with_name("bench_methods.py"))
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    rows = []
    for contest in ("paper", "selective", "names"):
        command = [sys.executable, script, contest]
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=own).stdout
        rows.append((f"methods, {contest}", json.dumps(json.loads(out))))
    return rows


def main() -> None:
    """Print a Markdown table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = million(folder)
        rows = [
            *reading(path, folder),
            *describing(path),
            *detecting(folder),
            *bounding(),
            *pricing(),
            *sanitizing(large=True),
            *training(),
            *methods(),
        ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"| what | CPU time and ratio ({os.cpu_count()} cores) |\n|---|---|")
    for what, figure in rows:
        print(f"| {what} | {figure} |")
    print(f"\nPeak memory of the whole run: {peak:.1f} GB.\n")
    growing = Path(__file__).with_name("bench_scaling.py")
    subprocess.run([sys.executable, str(growing)], check=True)


if __name__ == "__main__":
    main()
