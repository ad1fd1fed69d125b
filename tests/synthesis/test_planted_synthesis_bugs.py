"""Bugs that private votes could have: the tests notice each.

A change that no longer applies fails, too: then the suite would prove nothing.
"""

from pathlib import Path

from support.planting import Change, planted

VOTES, WHOLE = "synthesis/test_votes.py", "synthesis/test_synthesis.py"

BUGS: dict[str, Change] = {
    "a vote for candidates of any label": (
        "synthesis/votes.py",
        "own = columns.of_label[kind]",
        "own = np.arange(len(columns))",
        f"{VOTES}::test_sums_equal_a_loop[users]",
    ),
    "users who are not clipped": (
        "training/methods/linear_sums.py",
        "return sums.users(\n        losses, parts(units), clip_norm=clip_norm,",
        "return sums.users(\n        losses, parts(units), clip_norm=1e9,",
        f"{VOTES}::test_nobody_moves_the_sum_by_more_than_the_clip_norm",
    ),
    "points that are not whole numbers": (
        "synthesis/space.py",
        "np.rint(vector * (SCALE / length))",
        "(vector * (SCALE / length))",
        f"{VOTES}::test_products_are_exact_whatever_is_multiplied_with_them",
    ),
    "equals left to how a library sorts": (
        "synthesis/space.py",
        " - np.arange(len(others))",
        " - 0",
        f"{VOTES}::test_equals_are_settled_by_their_order",
    ),
    "a sum that leaves as it is": (
        "synthesis/session.py",
        "kept[phase] = heard(noisy).tolist()",
        "kept[phase] = heard(total.tensors).tolist()",
        f"{WHOLE}::test_what_leaves_is_noisy",
    ),
    "a release without an entry": (
        "training/dp/noise.py",
        "    ledger.charge(event, phase=phase)\n",
        "",
        f"{WHOLE}::test_the_ledger_is_on_disk_before_anything_is_heard",
    ),
    "votes that are asked for again after a stop": (
        "synthesis/session.py",
        "        if phase not in kept:",
        "        if True:",
        f"{WHOLE}::test_who_goes_on_after_a_stop_spends_nothing_twice[_finish]",
    ),
    "texts that are compared with their names": (
        "synthesis/session.py",
        "        if not self.plan.about_names:\n            return self.part",
        "        if True:\n            return self.part",
        f"{WHOLE}::test_another_name_gives_the_same_text_bit_by_bit",
    ),
    "entities without a cap": (
        "synthesis/session.py",
        "            rows = bounded_rows(self.plan, self.graph, owned)[1]",
        "            pass",
        f"{WHOLE}::test_entities_vote_under_their_caps",
    ),
    "a text that nobody looks at": (
        "verification/runs.py",
        "        checks += _files_beside(certificate, run)\n        checks.append",
        "        checks.append",
        f"{WHOLE}::test_a_change_is_noticed[file]",
    ),
    "a certificate that says what it is about by itself": (
        "verification/runs.py",
        '"format", "standing"',
        '"standing"',
        f"{WHOLE}::test_a_change_is_noticed[certificate]",
    ),
}


def test_every_planted_bug_is_caught_and_nothing_else(tmp_path: Path) -> None:
    """One test, so that one worker does it once."""
    assert planted(BUGS, tmp_path) == {"unchanged": 0} | dict.fromkeys(BUGS, 1)
