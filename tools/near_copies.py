"""How long near-copies take to find, beside datasketch (`pip install datasketch`).

    python tools/near_copies.py --data DIR

Both use 32 hashes in 8 bands of 4, on the first 20,000 texts of AG News.
"""

import argparse
import re
import sys
import time
from pathlib import Path

from tacit.corpora import open_corpus
from tacit.corpus import Corpus
from tacit.corpus.description import find_near_duplicates

RECORDS, HASHES, BANDS, ALIKE = 20_000, 32, 8, 0.8


def shingles(text: str) -> list[bytes]:
    words = re.sub(r"[\W_]+", " ", text.lower()).split()
    return [" ".join(three).encode() for three in {*zip(words, words[1:], words[2:], strict=False)}]


def theirs(texts: list[str], users: list[str]) -> int:
    """The same by datasketch: the number of records with a near-copy by another user."""
    from datasketch import MinHash, MinHashLSH  # type: ignore[import-not-found, unused-ignore]

    hashes = MinHash.bulk([shingles(text) for text in texts], num_perm=HASHES)
    index = MinHashLSH(num_perm=HASHES, params=(BANDS, HASHES // BANDS))
    for number, one in enumerate(hashes):
        index.insert(number, one)
    return sum(
        any(users[i] != users[n] and one.jaccard(hashes[i]) >= ALIKE for i in index.query(one))
        for n, one in enumerate(hashes)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    texts = open_corpus("ag_news", parser.parse_args().data).column("text").to_pylist()[:RECORDS]
    users = [f"u{number % 500}" for number in range(len(texts))]
    rows = [{"id": str(n), "user": users[n], "text": text} for n, text in enumerate(texts)]
    corpus = Corpus.from_records(rows)
    began = time.process_time()
    ours = find_near_duplicates(corpus)["records"]
    between = time.process_time()
    found = theirs(texts, users)
    sys.stdout.write(f"ours        {between - began:5.2f} s, {ours} records\n")
    sys.stdout.write(f"datasketch  {time.process_time() - between:5.2f} s, {found} records\n")


if __name__ == "__main__":
    main()
