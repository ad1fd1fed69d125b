"""Dealing records to users, and users to splits."""

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpora.dealing import deal_splits, deal_users


@given(st.integers(0, 400), st.integers(0, 2**32))
def test_every_record_gets_a_user_and_sizes_are_as_declared(count, seed):
    users = deal_users(count, "u", np.random.default_rng(seed))
    assert len(users) == count
    sizes = list(Counter(users).values())
    # Seven standard deviations; only the last user may be smaller.
    assert all(size <= 29 for size in sizes)
    assert sum(size < 1 for size in sizes) == 0
    assert sum(size <= 1 for size in sizes) <= 1


def test_the_sizes_have_mean_15_and_deviation_2():
    users = deal_users(60_000, "u", np.random.default_rng(0))
    sizes = np.array(list(Counter(users).values()))
    # Rounding to whole records adds 1/12 to the variance.
    assert abs(sizes.mean() - 15) < 0.15
    assert abs(sizes.std() - np.sqrt(4 + 1 / 12)) < 0.15


def test_neighbouring_records_go_to_different_users():
    users = deal_users(3000, "u", np.random.default_rng(0))
    assert sum(a == b for a, b in pairwise(users)) < 60


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_a_user_is_in_one_split_and_shares_are_kept(count, seed):
    users = [f"u{n}" for n in range(count)] * 2
    splits = deal_splits(users, np.random.default_rng(seed))
    assert set(splits) == set(users)
    counts = Counter(splits.values())
    assert counts["valid"] == counts["test"] == round(count / 10)
    assert counts["train"] > 0
