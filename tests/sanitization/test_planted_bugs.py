"""Bugs that a sanitizer could have, some of them in published code: the tests notice each.

A change that no longer applies fails, too: then the suite would prove nothing.
"""

from pathlib import Path

from support.planting import Change, planted

KERNEL, TEXTS = "sanitization/test_kernel.py", "sanitization/test_sanitizer.py"
COMMAND, PAPER = "cli/test_sanitize_command.py", "privacy/certificates/test_local_privacy.py"
PROMISES, FOUND = (
    "sanitization/test_promises.py",
    "corpus/test_overlap.py::test_private_text_is_found",
)
BOTH_EQUATIONS = f"{TEXTS}::test_draws_of_santext_plus_are_those_of_both_equations"
SHARED = f"{TEXTS}::test_no_two_texts_of_a_corpus_share_chance"
DRAWN = '            f"{own}{first + row}" if system else f"{column}\\0{id_}"'.strip()

BUGS: dict[str, Change] = {
    "the exponent without its half": (
        "sanitization/kernel.py",
        "found *= -0.5 * epsilon",
        "found *= -1.0 * epsilon",
        f"{KERNEL}::test_every_triple_of_a_small_vocabulary",
    ),
    "squared distances": (
        "sanitization/kernel.py",
        "        np.sqrt(found, out=found)\n",
        "",
        f"{KERNEL}::test_random_triples_of_a_large_vocabulary",
    ),
    "rows that underflow to nothing": (
        "sanitization/kernel.py",
        "found[strangers] -= found[strangers].max(1, keepdims=True)",
        "pass",
        f"{KERNEL}::test_a_huge_epsilon_takes_the_nearest_sensitive_word",
    ),
    "a draw that takes the word before": (
        "sanitization/kernel.py",
        "uniforms[tokens] * line[-1]",
        "uniforms[tokens] * line[-2]",
        f"{KERNEL}::test_draws_follow_the_rows",
    ),
    "noise of an exponential instead of a Gamma length": (
        "sanitization/kernel.py",
        "rng.gamma(dims, 1 / epsilon",
        "rng.gamma(1, 1 / epsilon",
        f"{KERNEL}::test_noise_has_the_density_that_is_claimed",
    ),
    "a sensitive word that may stay like a plain one": (
        "sanitization/mechanisms.py",
        "return sensitive | (coins < float(work.recipe.replace_plain_rate or 0.0))",
        "return (sensitive & (coins < 0.9)) | "
        "(coins < float(work.recipe.replace_plain_rate or 0.0))",
        BOTH_EQUATIONS,
    ),
    "plain words that stay with p instead of 1 - p": (
        "sanitization/mechanisms.py",
        "(coins < float(work.recipe.replace_plain_rate or 0.0))",
        "(coins >= float(work.recipe.replace_plain_rate or 0.0))",
        BOTH_EQUATIONS,
    ),
    "one number for the coin and the choice": (
        "sanitization/sanitizer.py",
        "numbers[0::2], numbers[1::2]",
        "numbers[0::2], numbers[0::2]",
        BOTH_EQUATIONS,
    ),
    "plain words become any word": (
        "sanitization/sanitizer.py",
        "outputs = self.outputs if self.sensitive else None",
        "outputs = None",
        BOTH_EQUATIONS,
    ),
    "one random stream for all records": (
        "sanitization/random_streams.py",
        '        hashed.update(name.encode("utf-8", "surrogatepass"))\n',
        "",
        f"{TEXTS}::test_records_have_independent_streams",
    ),
    "records of a corpus share a stream": (
        "sanitization/streaming.py",
        DRAWN,
        'f"{own}" if system else f"{column}"',
        f"{SHARED}[santext-2.0-None]",
    ),
    "every window begins with the same streams": (
        "sanitization/streaming.py",
        'f"{own}{first + row}"',
        'f"{own}{row}"',
        f"{SHARED}[santext-2.0-None]",
    ),
    "the two texts of a pair share a stream": (
        "sanitization/streaming.py",
        'f"{column}\\0{self.own}\\0"',
        'f"{self.own}\\0"',
        f"{SHARED}[santext-2.0-None]",
    ),
    "one stream of noise for all records": (
        "sanitization/mechanisms.py",
        'draws.streams.generator("noise\\0" + draws.names[record])',
        'draws.streams.generator("noise\\0")',
        f"{SHARED}[fbdd-4.0-1]",
    ),
    "a key that anybody can guess": (
        "sanitization/random_streams.py",
        "secrets.token_bytes(32) if seed is None",
        'b"0" * 32 if seed is None',
        f"{TEXTS}::test_without_a_seed_nothing_repeats",
    ),
    "epsilon_0 of the words that stay": (
        "privacy/certificates/local_wording.py",
        "math.log(1 / rate) if rate > 0",
        "math.log(1 / (1 - rate)) if rate < 1",
        f"{PAPER}::test_what_is_added_between_a_sensitive_and_a_plain_word",
    ),
    "a word's epsilon without the factor": (
        "privacy/certificates/local_privacy.py",
        "finite(rate * d) for name, d",
        "finite(rate * d / 2) for name, d",
        f"{PAPER}::test_the_table_is_epsilon_times_distance",
    ),
    "a text's epsilon that does not add up": (
        "privacy/certificates/local_privacy.py",
        'finite(n * rate * distance["median"])',
        'finite(n**0.5 * rate * distance["median"])',
        f"{PAPER}::test_the_table_is_epsilon_times_distance",
    ),
    "a word that is its own neighbour": (
        "sanitization/certification.py",
        "found[name].append(part[:, n])",
        "found[name].append(part[:, n - 1])",
        f"{PAPER}::test_the_table_is_epsilon_times_distance",
    ),
    "a fixed seed that is certified": (
        "privacy/certificates/local_privacy.py",
        '"standing": "heuristic" if seeded or leaks else "proved"',
        '"standing": "heuristic" if leaks else "proved"',
        f"{COMMAND}::test_a_fixed_seed_is_not_for_release",
    ),
    "a leak of the vocabulary that is not recorded": (
        "sanitization/certification.py",
        '"leaks": list(leaks),',
        '"leaks": [],',
        f"{COMMAND}::test_a_vocabulary_from_the_corpus_is_recorded_as_a_leak",
    ),
    "unknown words kept without a word": (
        "sanitization/sanitizer.py",
        'keep = self.recipe.unknown == "keep"',
        "keep = True",
        f"{TEXTS}::test_unknown_words",
    ),
    "kept words that count as protected": (
        "privacy/certificates/local_wording.py",
        'if event.unknown == "keep" else [])',
        'if event.unknown == "never" else [])',
        f"{PROMISES}::test_whatever_stands_as_it_was_is_excluded_from_the_headline"
        "[random-keep-2.0-None]",
    ),
    "figures of a promise that a leak took": (
        "privacy/certificates/local_wording.py",
        '    if leaks:\n        return "infinity", "infinity"\n',
        "",
        f"{COMMAND}::test_kept_words_take_every_promise[random]",
    ),
    "unknown words that were left out unsaid": (
        "privacy/certificates/local_wording.py",
        'if event.unknown == "random":\n        return (',
        'if event.unknown != "keep":\n        return (',
        f"{PROMISES}::test_a_promise_of_nothing_left_means_that_nothing_is_left"
        "[random-drop-2.0-None]",
    ),
    "a leak that leaves the standing": (
        "privacy/certificates/local_privacy.py",
        '"heuristic" if seeded or leaks else',
        '"heuristic" if seeded else',
        f"{PROMISES}::test_a_vocabulary_from_the_text_takes_every_promise",
    ),
    "pieces that are called words": (
        "sanitization/certification.py",
        'unit="words" if work.embedding.pieces is None else "pieces"',
        'unit="words"',
        f"{PROMISES}::test_pieces_of_words_are_not_called_words",
    ),
    "columns that are passed on unsaid": (
        "sanitization/__init__.py",
        "columns=columns",
        'columns=["text"]',
        f"{PROMISES}::test_columns_that_are_passed_on_are_named[o.jsonl-drop0-columns id, user, "
        "label]",
    ),
    "a word that is any other": (
        "sanitization/certification.py",
        "rows[:, every][~itself]",
        "rows[:, every]",
        f"{PROMISES}::test_any_other_word_is_not_the_word_itself",
    ),
    "a digest of the private vocabulary": (
        "sanitization/embeddings.py",
        "return self.cut_from or self.digest",
        "return self.digest",
        f"{PROMISES}::test_a_vocabulary_from_the_text_takes_every_promise",
    ),
    "any corpus of the right name": (
        "verification/runs.py",
        'yield Check(f"file {name}", found == digest, detail)',
        'yield Check(f"file {name}", found is not None, detail)',
        f"{COMMAND}::test_another_text_is_refused",
    ),
    "a certificate that the ledger does not bind": (
        "verification/runs.py",
        "bound = contents.closing == binding(certificate)",
        "bound = contents.closing is not None",
        f"{COMMAND}::test_a_forged_certificate_is_refused[created-2001-01-01]",
    ),
    "files of the folder that nobody looks at": (
        "verification/runs.py",
        "    checks.append(_others(folder))\n",
        "",
        f"{COMMAND}::test_every_file_of_the_folder_is_checked_or_named",
    ),
    "a page for people that may say anything": (
        "verification/runs.py",
        "    checks += _page_checks(folder, pages(certificate))\n",
        "",
        f"{COMMAND}::test_every_file_of_the_folder_is_checked_or_named",
    ),
    "public text that is not compared": (
        "sanitization/public_inputs.py",
        "checked = require_independent(self._pieces, public_texts(path), what=what).checked",
        'checked = ""',
        f"{COMMAND}::test_public_text_that_is_private_is_refused",
    ),
    "vectors whose words are not compared": (
        "sanitization/public_inputs.py",
        "if not Path(where).is_file():",
        "if True:",
        f"{COMMAND}::test_a_list_of_the_private_words_is_refused_where_a_public_one_is_asked_for"
        "[embeddings]",
    ),
    "an overlap that is looked for in one direction": (
        "corpus/overlap.py",
        '        found[f"{piece} of the private"] = common.both / max(1, common.ours)\n',
        "",
        "corpus/test_overlap.py::test_private_text_of_other_shapes_is_found",
    ),
    "an overlap that is looked for in the other": (
        "corpus/overlap.py",
        '        found[f"{piece} of the public"] = common.both / max(1, common.theirs)\n',
        "",
        f"{FOUND}[one record of it]",
    ),
    "an overlap that capitals hide": (
        "corpus/overlap.py",
        "part = part.casefold()",
        "pass",
        f"{FOUND}[in capitals]",
    ),
    "an overlap that an invisible character hides": (
        "corpus/overlap.py",
        '_INVISIBLE.sub("", unicodedata.normalize("NFKC", part))',
        'unicodedata.normalize("NFKC", part)',
        f"{FOUND}[with invisible characters]",
    ),
    "an overlap that joining hides": (
        "corpus/overlap.py",
        '("sentences", sentences, SHORTEST),',
        '("sentences", records, SHORTEST),',
        "corpus/test_overlap.py::test_private_text_of_other_shapes_is_found",
    ),
    "samples of two large texts that never meet": (
        "corpus/overlap.py",
        "bits = min(private[piece].bits, public[piece].bits)",
        "bits = 64",
        "corpus/test_overlap.py::test_a_large_text_is_compared_by_a_part_that_is_the_same_in_both",
    ),
    "the pair passed on as it was": (
        "sanitization/streaming.py",
        "for c in _texts_of(batch)}",
        "for c in _texts_of(batch)[:1]}",
        f"{SHARED}[random-None-1]",
    ),
}


def test_every_planted_bug_is_caught_and_nothing_else(tmp_path: Path) -> None:
    """One test, so that one worker does it once."""
    assert planted(BUGS, tmp_path) == {"unchanged": 0} | dict.fromkeys(BUGS, 1)
