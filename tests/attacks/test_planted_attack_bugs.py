"""Bugs planted in attacks, each of which makes them report a leak that is none: all are noticed."""

from pathlib import Path

from support.planting import Change, planted

NULL, SPELLING = "attacks/test_null.py", "attacks/test_spelling.py"
RATES = f"{NULL}::test_rates_of_what_tells_nothing_are_those_of_guessing"
CONTROLS = f"{NULL}::test_what_controls_do_as_well_is_no_leak"

CHANGES: dict[str, Change] = {
    "ties for the attacker in the second pass": (
        "attacks/secrets.py",
        "room * right[at].mean()",
        "min(room, right[at].sum())",
        f"{NULL}::test_equal_secrets_are_right_half_of_the_time",
    ),
    "ties for the attacker in the area": (
        "attacks/rates.py",
        "both = stats.rankdata(np.concatenate([members, others]))",
        'both = stats.rankdata(np.concatenate([members, others]), method="max")',
        f"{RATES}[ties-(20, 20)]",
    ),
    "whoever scores above few others is found at any rate": (
        "attacks/rates.py",
        "np.clip((room - (n - upto)) / (1 + equal), 0, 1)",
        "(n - upto <= room)",
        f"{RATES}[continuous-(3, 3)]",
    ),
    "equally likely secrets all rank first": (
        "attacks/exposure.py",
        "mean = np.where(equal == 1, np.log(first + 1), several)",
        "mean = np.log(first + 1)",
        f"{NULL}::test_secrets_that_nobody_planted_have_the_exposure_of_chance[constant-100]",
    ),
    "the rank is off by all that is as likely": (
        "attacks/exposure.py",
        "return weight[-1] - upto, upto - below",
        "return weight[-1] - below, upto - below",
        f"{NULL}::test_so_they_have_among_secrets_that_were_drawn[ties-200]",
    ),
    "a fit without end": (
        "attacks/exposure.py",
        "far = np.minimum(np.where(np.isnan(far), 0.0, far), most)",
        "far = np.where(np.isnan(far), 0.0, far)",
        f"{NULL}::test_exposure_is_fitted_where_a_distribution_fits_and_else_a_rank[normal]",
    ),
    "controls dropped from what came out": (
        "attacks/verdicts.py",
        "[controls.hits, controls.tried - controls.hits],",
        "[0, controls.tried],",
        CONTROLS,
    ),
    "unknown words count as spelled": (
        "attacks/spelling.py",
        "fine.append(bool(own) and unknown not in own)",
        "fine.append(bool(own))",
        f"{SPELLING}::test_words_are_spelled_or_not",
    ),
    "unknown words count as reproduced": (
        "attacks/tab.py",
        " and unknown not in greedy",
        "",
        f"{SPELLING}::test_unknown_words_are_never_reproduced",
    ),
    "what controls do is shown as leakage": (
        "attacks/tab.py",
        "controls = measured.figures.get(none, 0.0)",
        "controls = 0.0",
        "reports/test_report.py::test_controls_that_come_out_as_often_are_no_leakage",
    ),
}


def test_every_planted_bug_is_noticed(tmp_path: Path) -> None:
    """A change that no longer applies fails, too: then this would prove nothing."""
    found = planted(CHANGES, tmp_path)
    assert found.pop("unchanged") == 0
    assert found == dict.fromkeys(CHANGES, 1)
