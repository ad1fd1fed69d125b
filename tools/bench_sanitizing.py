"""How fast text is sanitized, beside a naive reference, and how much memory that takes.

    python tools/bench_sanitizing.py             # the table
    python tools/bench_sanitizing.py --large     # also 88k and 400k words, and ten million tokens

The naive reference is our own: one row for each word that occurs by numpy's norm, kept; then
`numpy.random.choice` for each token. Its choices are timed on a part of the tokens, its rows on a
part of the words, and scaled up, since the whole would take minutes. Each of ours runs in a process
of its own, whose peak memory is given less what the process had before. Sizes are those of SST-2
in the paper: 14,730 words with 300 numbers, 630,000 tokens; words follow Zipf's law.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORDS, DIMS, TOKENS, PER_TEXT = 14_730, 300, 630_000, 10


def made(words: int, dims: int, tokens: int, seed: int = 0) -> tuple[Any, list[str], list[str]]:
    """Random vectors of about GloVe's spread, and texts over those words."""
    import numpy as np

    from tacit.sanitization.embeddings import Embedding

    rng = np.random.default_rng(seed)
    vectors = (rng.standard_normal((words, dims)) * (5.0 / dims**0.5)).astype(np.float32)
    embedding = Embedding("made", tuple(f"w{n}" for n in range(words)), vectors)
    ranks = np.minimum(rng.zipf(1.2, tokens) - 1, 10**9) % words
    # Every word occurs, as in a vocabulary that was counted from the text.
    ranks[: min(words, tokens)] = np.arange(min(words, tokens))
    rng.shuffle(ranks)
    drawn = [f"w{n}" for n in ranks.tolist()]
    texts = [" ".join(drawn[n : n + PER_TEXT]) for n in range(0, tokens, PER_TEXT)]
    return embedding, texts, [str(n) for n in range(len(texts))]


def peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def ours(method: str, words: int, dims: int, tokens: int, epsilon: float) -> dict[str, float]:
    """One method, strings in and strings out, in this process."""
    from tacit.sanitization import Recipe, Sanitizer, choose_sensitive

    embedding, texts, names = made(words, dims, tokens)
    sensitive = choose_sensitive(embedding, share=0.9) if method == "santext+" else None
    work = Sanitizer(embedding, Recipe(method, epsilon), sensitive, seed=1, workers=2)  # type: ignore[arg-type]
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    wall, cpu = time.perf_counter(), time.process_time()
    window = 200_000
    for start in range(0, len(texts), window):
        work(names[start : start + window], texts[start : start + window])
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "memory": peak() - before,
    }


def streamed(tokens: int) -> dict[str, float]:
    """Batches that are made as they go through a sanitizer, as a file's would be; 5,000 words."""
    from collections.abc import Iterator

    import numpy as np
    import pyarrow as pa

    from tacit.sanitization import Recipe, Sanitizer
    from tacit.sanitization.streaming import Passing

    embedding, _, _ = made(5000, 50, 10)
    rng = np.random.default_rng(2)
    per_batch = 200_000

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, tokens, per_batch):
            ranks = (rng.zipf(1.2, per_batch) - 1) % 5000
            drawn = [f"w{n}" for n in ranks.tolist()]
            texts = [" ".join(drawn[n : n + PER_TEXT]) for n in range(0, per_batch, PER_TEXT)]
            ids = [str(first + n) for n in range(len(texts))]
            yield pa.RecordBatch.from_pydict({"id": ids, "text": texts})

    work = Sanitizer(embedding, Recipe("santext", 2.0), seed=1, workers=2)
    Path("/proc/self/clear_refs").write_text("5")
    before, wall, cpu = peak(), time.perf_counter(), time.process_time()
    for _ in Passing(work)(batches()):
        pass
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "memory": peak() - before,
    }


def gemm(words: int, dims: int) -> dict[str, float]:
    """One |V| x |V| product in blocks, in double and in single precision."""
    import numpy as np

    vectors = np.random.default_rng(0).standard_normal((words, dims))
    found = {}
    for name, kind in (("double", np.float64), ("single", np.float32)):
        points = vectors.astype(kind)
        block = max(1, 4_000_000 // words)
        wall, cpu = time.perf_counter(), time.process_time()
        for start in range(0, words, block):
            points[start : start + block] @ points.T
        found[name] = time.process_time() - cpu
        found[f"{name}_wall"] = time.perf_counter() - wall
    return found


def naive(words: int, dims: int, tokens: int, epsilon: float, outputs: float) -> dict[str, float]:
    """Seconds of CPU that rows one by one, and a choice for each token, would take."""
    import numpy as np

    embedding, _, _ = made(words, dims, 10)
    rng = np.random.default_rng(1)
    targets = embedding.vectors[: round(outputs * words)]
    rows = []
    begun, some = time.process_time(), 150
    for word in range(some):
        apart = np.linalg.norm(targets - embedding.vectors[word], axis=1)
        weights = np.exp(-0.5 * epsilon * apart)
        rows.append(weights / weights.sum())
    row = (time.process_time() - begun) / some
    begun, some = time.process_time(), 3000
    for token in range(some):
        p = rows[token % len(rows)].astype(np.float64)
        np.random.choice(len(targets), p=p / p.sum())  # noqa: NPY002
    choice = (time.process_time() - begun) / some
    begun, some = time.process_time(), 60
    for _ in range(some):
        point = embedding.vectors[0] + rng.standard_normal(dims)
        np.linalg.norm(embedding.vectors - point, axis=1).argmin()
    nearest = (time.process_time() - begun) / some
    return {"rows": row * words, "choices": choice * tokens, "nearest": nearest * tokens}


def apart(what: str, **given: Any) -> dict[str, float]:
    """Run a function of this file in a process of its own."""
    command = [sys.executable, __file__, "--only", what, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def sanitizing(large: bool = False) -> list[tuple[str, str]]:
    """The rows of the table."""
    size = {"words": WORDS, "dims": DIMS, "tokens": TOKENS}
    product = apart("gemm", words=WORDS, dims=DIMS)
    slow = apart("naive", **size, epsilon=2.0, outputs=1.0)
    partly = apart("naive", **size, epsilon=2.0, outputs=0.9)
    found = {m: apart("ours", method=m, **size, epsilon=2.0) for m in ("santext", "santext+")}
    reference = slow["rows"] + slow["choices"]
    rows = [
        (
            "naive SanText, 14,730 words, 630k tokens (scaled up)",
            f"{reference:.0f} s: rows {slow['rows']:.0f}, choices {slow['choices']:.0f}",
        ),
        (
            "one 14,730 x 14,730 product of 300 numbers",
            f"{product['double']:.1f} s in double, {product['single']:.1f} s in single precision",
        ),
        (
            "SanText, strings in and out",
            _row(found["santext"], reference)
            + f", {found['santext']['cpu'] / product['double']:.1f} x the product in double, "
            f"{found['santext']['cpu'] / product['single']:.1f} x in single precision",
        ),
        (
            "SanText+ (w = 0.9, p = 0.3)",
            _row(found["santext+"], partly["rows"] + partly["choices"]),
        ),
    ]
    few = 60_000
    fbdd = apart("ours", method="fbdd", words=WORDS, dims=DIMS, tokens=few, epsilon=20.0)
    scaled = slow["nearest"] * few / TOKENS
    rows.append((f"FBDD, {few:,} tokens", _row(fbdd, scaled)))
    if large:
        sizes = ((88_159, 300, 20_000, "1 GiB"), (400_000, 50, 4_000, "2 GiB"))
        for words, dims, tokens, limit in sizes:
            one = apart(
                "ours", method="santext", words=words, dims=dims, tokens=tokens, epsilon=2.0
            )
            rows.append(
                (
                    f"SanText, {words:,} words x {dims}, {tokens:,} tokens",
                    f"{one['cpu']:.0f} s, {one['memory'] / 2**20:.0f} MiB (limit {limit})",
                )
            )
        for tokens in (2_000_000, 5_000_000, 10_000_000):
            one = apart("streamed", tokens=tokens)
            rows.append(
                (
                    f"SanText as a stream, 5,000 words, {tokens:,} tokens",
                    f"{one['cpu']:.1f} s, {one['memory'] / 2**20:.0f} MiB",
                )
            )
    return rows


def _row(found: dict[str, float], reference: float) -> str:
    times, room = reference / found["cpu"], found["memory"] / 2**20
    return f"{found['cpu']:.1f} s, {times:.0f} x the naive reference, {room:.0f} MiB"


KNOWN = {"ours": ours, "gemm": gemm, "naive": naive, "streamed": streamed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", nargs=2)
    given = parser.parse_args()
    if given.only:
        name, arguments = given.only
        print(json.dumps(KNOWN[name](**json.loads(arguments))))
        return
    print(f"| what | CPU time ({os.cpu_count()} cores) |\n|---|---|")
    for what, figure in sanitizing(given.large):
        print(f"| {what} | {figure} |", flush=True)


if __name__ == "__main__":
    main()
