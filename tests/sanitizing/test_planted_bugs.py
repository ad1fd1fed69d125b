"""Bugs that a sanitizer could have, some of them in published code: the tests notice each.

A change that no longer applies fails, too: then the suite would prove nothing.
"""

from pathlib import Path

from planting import Change, planted

KERNEL, TEXTS = "sanitizing/test_kernel.py", "sanitizing/test_sanitizer.py"
COMMAND, PAPER = "cli/test_sanitize_command.py", "privacy/test_local.py"
BOTH_EQUATIONS = f"{TEXTS}::test_draws_of_santext_plus_are_those_of_both_equations"
SHARED = f"{TEXTS}::test_no_two_texts_of_a_corpus_share_chance"
DRAWN = '            f"{own}{first + row}" if system else f"{column}\\0{id_}"'.strip()

BUGS: dict[str, Change] = {
    "the exponent without its half": (
        "sanitizing/kernel.py",
        "found *= -0.5 * epsilon",
        "found *= -1.0 * epsilon",
        f"{KERNEL}::test_every_triple_of_a_small_vocabulary",
    ),
    "squared distances": (
        "sanitizing/kernel.py",
        "        np.sqrt(found, out=found)\n",
        "",
        f"{KERNEL}::test_random_triples_of_a_large_vocabulary",
    ),
    "rows that underflow to nothing": (
        "sanitizing/kernel.py",
        "found[strangers] -= found[strangers].max(1, keepdims=True)",
        "pass",
        f"{KERNEL}::test_a_huge_epsilon_takes_the_nearest_sensitive_word",
    ),
    "a draw that takes the word before": (
        "sanitizing/kernel.py",
        "uniforms[tokens] * line[-1]",
        "uniforms[tokens] * line[-2]",
        f"{KERNEL}::test_draws_follow_the_rows",
    ),
    "noise of an exponential instead of a Gamma length": (
        "sanitizing/kernel.py",
        "rng.gamma(dims, 1 / epsilon",
        "rng.gamma(1, 1 / epsilon",
        f"{KERNEL}::test_noise_has_the_density_that_is_claimed",
    ),
    "a sensitive word that may stay like a plain one": (
        "sanitizing/sanitizer.py",
        "return sensitive | (coins < float(self.recipe.replace_plain_rate or 0.0))",
        "return (sensitive & (coins < 0.9)) | "
        "(coins < float(self.recipe.replace_plain_rate or 0.0))",
        BOTH_EQUATIONS,
    ),
    "plain words that stay with p instead of 1 - p": (
        "sanitizing/sanitizer.py",
        "(coins < float(self.recipe.replace_plain_rate or 0.0))",
        "(coins >= float(self.recipe.replace_plain_rate or 0.0))",
        BOTH_EQUATIONS,
    ),
    "one number for the coin and the choice": (
        "sanitizing/sanitizer.py",
        "numbers[0::2], numbers[1::2]",
        "numbers[0::2], numbers[0::2]",
        BOTH_EQUATIONS,
    ),
    "plain words become any word": (
        "sanitizing/sanitizer.py",
        "outputs = self.outputs if self.sensitive else None",
        "outputs = None",
        BOTH_EQUATIONS,
    ),
    "one random stream for all records": (
        "sanitizing/streams.py",
        '        hashed.update(name.encode("utf-8", "surrogatepass"))\n',
        "",
        f"{TEXTS}::test_records_have_independent_streams",
    ),
    "records of a corpus share a stream": (
        "sanitizing/streaming.py",
        DRAWN,
        'f"{own}" if system else f"{column}"',
        f"{SHARED}[santext-2.0-None]",
    ),
    "every window begins with the same streams": (
        "sanitizing/streaming.py",
        'f"{own}{first + row}"',
        'f"{own}{row}"',
        f"{SHARED}[santext-2.0-None]",
    ),
    "the two texts of a pair share a stream": (
        "sanitizing/streaming.py",
        'f"{column}\\0{self.own}\\0"',
        'f"{self.own}\\0"',
        f"{SHARED}[santext-2.0-None]",
    ),
    "one stream of noise for all records": (
        "sanitizing/sanitizer.py",
        'self.streams.generator("noise\\0" + names[record])',
        'self.streams.generator("noise\\0")',
        f"{SHARED}[fbdd-4.0-1]",
    ),
    "a key that anybody can guess": (
        "sanitizing/streams.py",
        "secrets.token_bytes(32) if seed is None",
        'b"0" * 32 if seed is None',
        f"{TEXTS}::test_without_a_seed_nothing_repeats",
    ),
    "epsilon_0 of the words that stay": (
        "privacy/local.py",
        "math.log(1 / rate) if rate > 0",
        "math.log(1 / (1 - rate)) if rate < 1",
        f"{PAPER}::test_what_is_added_between_a_sensitive_and_a_plain_word",
    ),
    "a word's epsilon without the factor": (
        "privacy/local.py",
        "finite(rate * d) for name, d",
        "finite(rate * d / 2) for name, d",
        f"{PAPER}::test_the_table_is_epsilon_times_distance",
    ),
    "a text's epsilon that does not add up": (
        "privacy/local.py",
        'finite(n * rate * distance["median"])',
        'finite(n**0.5 * rate * distance["median"])',
        f"{PAPER}::test_the_table_is_epsilon_times_distance",
    ),
    "a word that is its own neighbour": (
        "sanitizing/certifying.py",
        "found[name].append(part[:, n])",
        "found[name].append(part[:, n - 1])",
        f"{PAPER}::test_the_table_is_epsilon_times_distance",
    ),
    "a fixed seed that is certified": (
        "privacy/local.py",
        '"standing": "heuristic" if fixed else "proved"',
        '"standing": "proved"',
        f"{COMMAND}::test_a_fixed_seed_is_not_for_release",
    ),
    "a leak of the vocabulary that is not recorded": (
        "sanitizing/certifying.py",
        '                ledger.charge(NotPrivate(what=leak), phase="prepare")\n',
        "                pass\n",
        f"{COMMAND}::test_a_vocabulary_from_the_corpus_is_recorded_as_a_leak",
    ),
    "unknown words kept without a word": (
        "sanitizing/sanitizer.py",
        'keep = self.recipe.unknown == "keep"',
        "keep = True",
        f"{TEXTS}::test_unknown_words",
    ),
    "the pair passed on as it was": (
        "sanitizing/streaming.py",
        "for c in _texts_of(batch)}",
        "for c in _texts_of(batch)[:1]}",
        f"{SHARED}[random-None-1]",
    ),
}


def test_every_planted_bug_is_caught_and_nothing_else(tmp_path: Path) -> None:
    """One test, so that one worker does it once."""
    assert planted(BUGS, tmp_path) == {"unchanged": 0} | dict.fromkeys(BUGS, 1)
