"""Bugs that would make certificates false, planted one by one: the named test must notice each."""

from pathlib import Path

from support.planting import Change, planted

CONTINUED = "training/phases/test_continuing.py"
PLUGINS = "privacy/certificates/test_plugins.py"
AROUND = "training/test_ways_around.py"
TRUE = "training/test_true_certificates.py"
VERIFIED = "verification/test_verification.py"

PLANTED: dict[str, Change] = {
    "an inherited standing dropped": (
        "privacy/certificates/certificate.py",
        "        standing = worst_standing([standing, earlier.standing])",
        "        pass",
        f"{VERIFIED}::test_a_continued_run_is_no_better_than_the_first",
    ),
    "inherited leaks dropped": (
        "training/phases/continuing.py",
        "            leaks=tuple(leaks),",
        "            leaks=(),",
        f"{AROUND}::test_labels_of_a_run_that_counted_them_stay_a_leak",
    ),
    "a run is continued without being verified": (
        "training/phases/continuing.py",
        "wrong = next((check for check in verify(folder) if not check.ok), None)",
        "wrong = None",
        f"{CONTINUED}::test_what_does_not_verify_cannot_be_continued[exchanged weights]",
    ),
    "detectors of a continued run may differ": (
        "privacy/certificates/scope.py",
        "        if (mine.detectors, mine.rules) != (theirs.detectors, theirs.rules):",
        "        if False:",
        f"{CONTINUED}::test_only_what_was_protected_in_the_same_way_is_promised[detectors]",
    ),
    "caps of a continued run may differ": (
        "training/phases/continuing.py",
        '        if why is None and "entities" in unit:',
        "        if False:",
        f"{CONTINUED}::test_only_what_was_protected_in_the_same_way_is_promised[holders]",
    ),
    "earlier releases may be dropped": (
        "verification/runs.py",
        "    if earlier is not None or repeated:",
        "    if False:",
        f"{CONTINUED}::test_dropped_earlier_releases_are_found",
    ),
    "weights of a run pass for public ones": (
        "training/data/public_inputs.py",
        "        if made_by_a_run(file):",
        "        if False:",
        f"{CONTINUED}::test_weights_of_a_run_are_known_without_their_ledger",
    ),
    "a manifest that skips the tokenizer": (
        "privacy/certificates/manifest.py",
        '"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",',
        '"config.json", "generation_config.json", "tokenizer_config.json",',
        f"{TRUE}::test_everything_that_may_be_shared_is_in_the_manifest",
    ),
    "the ledger's last line is not compared": (
        "verification/runs.py",
        '    bound = closing.get("certificate") == core_digest(certificate)',
        "    bound = True",
        f"{VERIFIED}::test_what_is_found_out_later_is_bound_too",
    ),
    "files beside the certified ones are let be": (
        "privacy/certificates/manifest.py",
        "    others = [name for name in _names(folder) if name not in known]",
        "    others = []",
        f"{VERIFIED}::test_files_that_nobody_certified_are_found[model.pth]",
    ),
    "links are followed": (
        "privacy/certificates/manifest.py",
        "    return not path.is_symlink() and path.resolve().is_relative_to(folder.resolve())",
        "    return True",
        f"{VERIFIED}::test_weights_behind_a_link_are_not_the_certified_ones",
    ),
    "the kinds are left out of the sentence": (
        "privacy/certificates/scope.py",
        'said = f"entity{self._of_kinds}"',
        'said = "entity"',
        f"{TRUE}::test_the_promise_names_its_kinds_and_those_that_it_leaves_out",
    ),
    "kinds that are not protected are not named": (
        "training/data/scope.py",
        "not matches(k, wanted)),",
        "False),",
        f"{TRUE}::test_the_promise_names_its_kinds_and_those_that_it_leaves_out",
    ),
    "counted labels are no leak": (
        "training/phases/run_context.py",
        "        leaks.append(COUNTED_LABELS)",
        "        pass",
        f"{TRUE}::test_labels_that_were_counted_end_the_promise",
    ),
    "public text is not compared": (
        "training/phases/run_context.py",
        "public_inputs(run, corpus if private_here else None)",
        "public_inputs(run, None)",
        f"{TRUE}::test_private_text_is_not_accepted_as_public[reformatted-tokenizer]",
    ),
    "a policy for studies is proved": (
        "training/phases/run_context.py",
        "    if left_out is not None:",
        "    if False:",
        f"{TRUE}::test_a_policy_made_for_studies_proves_nothing",
    ),
    "mentions of another corpus keep their detectors' names": (
        "planning/pipeline.py",
        "if all(summary[name] == digest for name, digest in about.items()):",
        "if True:",
        f"{TRUE}::test_detectors_of_a_file_of_mentions_are_named_only_if_it_is_theirs",
    ),
    "code of other packages is not named": (
        "privacy/certificates/certificate.py",
        "    assumed += [one.assumption for one in foreign]",
        "    assumed += []",
        f"{PLUGINS}::test_a_plugin_is_assumed_to_do_what_it_declares",
    ),
    "a heuristic plug-in is certified as proved": (
        "privacy/certificates/certificate.py",
        "    standing = worst_standing([standing, *(one.standing for one in foreign)])",
        "    standing = worst_standing([standing])",
        f"{PLUGINS}::test_a_run_stands_no_better_than_its_plugin",
    ),
    "any delta will do": (
        "privacy/arguments.py",
        "    if require_delta(delta) * check_whole(unit_name, units, least=1) > 1:",
        "    if False:",
        f"{TRUE}::test_delta_is_judged_by_the_users_that_are_counted_where_none_are_declared",
    ),
    "a signature over less is enough": (
        "verification/signing.py",
        "        missing = sorted(signed_files(folder) - signed)",
        "        missing = []",
        "verification/test_signing.py::test_a_signature_over_less_is_none",
    ),
    "a counted vocabulary is not marked": (
        "training/phases/run_context.py",
        "        tokens.mark_as_counted(tokenizer, str(leak))",
        "        pass",
        f"{AROUND}::test_a_counted_vocabulary_is_known_wherever_it_was_copied",
    ),
    "a broken certificate is issued anew": (
        "privacy/certificates/certificate.py",
        "    if contents.broken:",
        "    if False:",
        f"{AROUND}::test_broken_stays_broken_when_a_finished_run_is_resumed",
    ),
    "what lies in the folder is certified": (
        "training/phases/session.py",
        "        self._require_own(files, saved)",
        "        pass",
        f"{AROUND}::test_files_that_the_run_did_not_write_are_not_certified[merges.txt]",
    ),
    "an account is a file": (
        "planning/spending.py",
        "same = one.data == other.data or _shared(one.users, other.users) > 0",
        "same = one.data == other.data",
        "planning/test_spending.py::test_an_account_follows_people_not_files",
    ),
}


def test_every_planted_bug_is_caught_and_nothing_else(tmp_path: Path) -> None:
    found = planted(PLANTED, tmp_path)
    assert found.pop("unchanged") == 0
    assert {name: outcome for name, outcome in found.items() if outcome != 1} == {}
