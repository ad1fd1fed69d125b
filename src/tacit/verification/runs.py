"""Check a certificate from the ledger and the plan: no data, no model code, no network.

What is checked is *recomputed*: figures from the ledger, sentences from the figures, digests from
the files. That the ledger tells the truth cannot be recomputed; whoever signs vouches for it.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

import yaml

from tacit.errors import TacitError
from tacit.planning.plan import Plan, read_plan
from tacit.privacy.accounting.price_cache import code_version
from tacit.privacy.certificates.certificate import (
    Certificate,
    Cost,
    Promise,
    certify,
    core_digest,
    read_certificate,
)
from tacit.privacy.certificates.documents import FILE, canonical_digest
from tacit.privacy.certificates.explanation import certificate_html, certificate_markdown
from tacit.privacy.certificates.local_privacy import (
    LocalCertificate,
    binding,
    is_local,
    issue_local,
    pages,
    read_local,
)
from tacit.privacy.certificates.manifest import KEPT, digest_in, not_covered
from tacit.privacy.certificates.wording import TEXT
from tacit.privacy.events import NotPrivate, Public, whole_passes
from tacit.privacy.ledger import LedgerContents, is_earlier, read_ledger
from tacit.privacy.rounding import down, up
from tacit.replication.published import PublishedPrice, selective_claim, uedp_claim, uedp_release


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and whether it fits."""

    what: str
    ok: bool
    detail: str


def verify(run: Path) -> list[Check]:
    """Everything that can be checked about a run folder; a mismatch is a check that is not ok."""
    run = Path(run)
    if is_local(run / "certificate.json"):
        return verify_sanitized(run)
    checks: list[Check] = []
    certificate = _try(checks, "certificate", lambda: read_certificate(run / "certificate.json"))
    contents = _try(checks, "ledger chain", lambda: read_ledger(run / "ledger.jsonl"))
    if not isinstance(certificate, Certificate) or not isinstance(contents, LedgerContents):
        return checks
    plan = _try(checks, "plan", lambda: Plan(**certificate.plan)) if certificate.plan else None
    if checks:
        return checks
    assert plan is None or isinstance(plan, Plan)
    checks[:] = _readable(contents)
    checks += _ledger_checks(certificate, contents)
    checks += _plan_checks(certificate, contents, plan, run)
    try:
        checks += _recomputed(certificate, contents, plan)
    except TacitError as error:
        checks.append(Check("epsilon", False, str(error)))
    checks += _settings_check(certificate, run)
    if certificate.released == TEXT:
        checks += _page_checks(run, _pages_of(certificate))
        checks += _files_beside(certificate, run)
        checks.append(_others(run))
    else:
        checks += _file_checks(certificate, run)
    checks += _audit_checks(certificate, run)
    return checks


def _readable(contents: LedgerContents) -> list[Check]:
    detail = "torn last line" if contents.torn else "every hash fits"
    return [
        Check("certificate", True, "readable, every field known"),
        Check("ledger chain", not contents.torn, detail),
    ]


def _audit_checks(certificate: Certificate, run: Path) -> Iterator[Check]:
    """Whether an audit that lies beside found more than is certified."""
    if certificate.standing == "broken":
        yield Check("audit", False, f"broken: {_BROKEN}")
    path = run / "audit.json"
    if not path.exists():
        return
    try:
        fields = json.loads(path.read_bytes())
        audits = [
            (str(one["unit"]), float(one["lower"]), one["claimed"], str(one["verdict"]))
            for one in fields["audits"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        yield Check("audit", False, "audit.json cannot be read; run tacit audit again")
        return
    for unit, lower, claimed, verdict in audits:
        costs = {str(name): float(cost.epsilon) for name, cost in certificate.costs.items()}
        claims = [costs[unit]] if unit in costs else []
        claims += [] if claimed is None or certificate.plan else [float(claimed)]
        broken = [said for said in claims if lower > said]
        found = f"epsilon for {unit} is at least {down(lower)}"
        if broken or verdict in ("contradicted", "broken"):
            said = f"; {up(min(broken))} is claimed" if broken else ""
            detail = f"broken: an audit found that {found}{said}; do not release this model"
            yield Check("audit", False, detail)
        else:
            yield Check("audit", True, f"{found}, which contradicts nothing")


_BROKEN = "an audit contradicted this certificate; do not release this model"


def _try(checks: list[Check], what: str, make: Callable[[], object]) -> object:
    try:
        return make()
    except TacitError as error:
        checks.append(Check(what, False, str(error)))
    except (OSError, TypeError, ValueError):
        checks.append(Check(what, False, "cannot be read"))
    return None


def _ledger_checks(certificate: Certificate, contents: LedgerContents) -> Iterator[Check]:
    closing = contents.closing or {}
    bound = closing.get("certificate") == core_digest(certificate)
    bound = bound and closing.get("files") == certificate.files
    detail = "binds this certificate and its files" if bound else "does not bind this certificate"
    yield Check("ledger's last line", bound, detail)
    here, same = len(contents.entries), contents.digest == certificate.ledger_digest
    detail = f"{here:,} releases" if same else "the ledger is not the one that was certified"
    yield Check("ledger digest", same, detail)
    detail = f"{here:,} in the ledger, {certificate.ledger_entries:,} certified"
    yield Check("number of releases", here == certificate.ledger_entries, detail)
    phases = contents.phases()
    yield Check("phases", phases == certificate.phases, ", ".join(phases) or "none")
    earlier = certificate.earlier
    repeated = sum(1 for entry in contents.entries if is_earlier(entry.phase))
    if earlier is not None or repeated:
        same = (
            earlier is not None
            and repeated == earlier.releases
            and contents.earlier_events() == earlier.events
        )
        detail = f"{repeated:,} releases of the run that is continued"
        yield Check("earlier run", same, detail if same else "its releases are not all here")


def _other_plan(certificate: Certificate) -> str:
    """Why a plan's digest may differ: since it was written, plans may have got more fields."""
    missing = sorted(Plan.model_fields.keys() - certificate.plan.keys())
    if not missing:
        return "differs"
    return (
        f"tacit {certificate.provenance.tacit} wrote this run, whose plans had no "
        f"{', '.join(missing)}: only that version can verify it"
    )


def _plan_checks(
    certificate: Certificate, contents: LedgerContents, plan: Plan | None, run: Path
) -> Iterator[Check]:
    for name in ("config", "data", "randomness"):
        said = getattr(certificate.provenance, name)
        yield Check(name, contents.about.get(name) == said, "as in the ledger's first line")
    if plan is None:
        none = contents.about.get("plan") is None and not certificate.plan_digest
        yield Check("plan", none, "none: no target was set" if none else "missing")
        return
    same = plan.digest() == certificate.plan_digest == contents.about.get("plan")
    detail = "plan, certificate and ledger agree" if same else _other_plan(certificate)
    yield Check("plan digest", same, detail)
    if (run / "plan.yml").exists():
        try:
            beside = read_plan(run / "plan.yml").digest() == plan.digest()
        except TacitError:
            beside = False
        yield Check("plan.yml", beside, "is the certified plan" if beside else "another plan")
    yield from _event_checks(contents, plan)


def _settings_check(certificate: Certificate, run: Path) -> Iterator[Check]:
    """Whether the settings that may be shared are those of the ledger's first line."""
    if "settings.yml" not in certificate.files or not (run / "settings.yml").exists():
        return
    try:
        text = (run / "settings.yml").read_text(encoding="utf-8")
        same = canonical_digest(yaml.safe_load(text)) == certificate.provenance.config
    except (OSError, ValueError, TypeError, yaml.YAMLError, RecursionError):
        same = False
    yield Check("settings.yml", same, "as in the ledger's first line" if same else "others")


def _event_checks(contents: LedgerContents, plan: Plan) -> Iterator[Check]:
    """Nothing was released but what was planned; a step redone after a stop is charged again."""
    if plan.noise_multiplier is None:
        yield Check("executed as planned", False, "the plan has no noise, so nothing was planned")
        return
    planned = plan.releases()
    executed = whole_passes(contents.own_releases())
    public = [e.what for e in executed if isinstance(e, Public)]
    if public:
        yield Check("recorded as public", True, "; ".join(public))
    others = {e: n for e, n in executed.items() if not isinstance(e, Public)}
    strange = set(others) - set(planned)
    private = sum(n for e, n in others.items() if not isinstance(e, NotPrivate))
    if strange:
        yield Check("executed as planned", False, "the ledger holds releases that were not planned")
    else:
        detail = f"{private:,} releases charged, {plan.steps:,} steps planned"
        yield Check("executed as planned", private > 0, detail)


def _recomputed(
    certificate: Certificate, contents: LedgerContents, plan: Plan | None
) -> Iterator[Check]:
    # Without a plan nothing is promised, and the certificate must say just that.
    protect = plan.protect if plan else certificate.protect
    delta = plan.delta if plan else certificate.delta
    limits = plan.limits if plan else {}
    units = set(plan.units) if plan else {protect}
    missing = (units | {protect, *limits}) - set(certificate.costs)
    yield Check("units", not missing, ", ".join(certificate.costs) or "none")
    if missing:
        return
    claim = _claim(certificate, contents)
    if certificate.published is not None:
        # A claim of another paper stands alone; that of the selective one, beside a plan.
        beside = certificate.published.get("method") == "selective"
        fits = claim is not None and (plan is not None) == beside
        detail = "recomputed from the ledger" if fits else "is not a claim about these releases"
        yield Check("published claim", fits, detail)
    by_degree = plan.by_degree if plan else None
    promise = Promise(protect, tuple(certificate.costs), delta, certificate.plan, by_degree)
    fresh = certify(
        contents, promise, published=claim, context=certificate.context, files=certificate.files
    )
    yield Check("delta", certificate.delta == delta, f"{delta:g}")
    yield Check("protected", certificate.protect == protect, protect)
    same_code = certificate.provenance.accounting == code_version()
    for unit, cost in certificate.costs.items():
        yield _compare(unit, cost, fresh.costs[unit], same_code)
    for unit, target in limits.items():
        epsilon = float(fresh.costs[unit].epsilon)
        yield Check(f"target for {unit}", epsilon <= target, f"{up(epsilon)} of {target:g}")
    if certificate.published is not None:
        yield Check("published figure", fresh.published == certificate.published, "as recomputed")
    elif plan is None:
        none = all(cost.epsilon == "infinity" for cost in fresh.costs.values())
        yield Check("no plan, no promise", none, "nothing is promised" if none else "no plan")
    yield from _same_words(certificate, fresh)


def _same_words(certificate: Certificate, fresh: Certificate) -> Iterator[Check]:
    """Whether a certificate says what one that is issued anew says."""
    for name in (
        "format", "standing", "sentence", "scope", "assumptions", "not_covered", "public",
        "earlier",
    ):  # fmt: skip
        fits = getattr(fresh, name) == getattr(certificate, name)
        detail = "as recomputed" if fits else "differs from what holds"
        if name == "standing" and certificate.standing == "broken":
            fits, detail = False, f"broken: {_BROKEN}"
        yield Check(name.replace("_", " "), fits, detail)


def _claim(certificate: Certificate, contents: LedgerContents) -> PublishedPrice | None:
    """The published claim, made again for what the ledger holds; None if it is about other things.

    It has to describe every release that is not public, in number and kind.
    """
    said = certificate.published
    if said is not None and said.get("method") == "selective":
        return selective_claim(contents.releases(), certificate.delta)
    if said is None or said.get("method") != "uedp":
        return None
    try:
        details = {n: said["details"][n] for n in ("user_rate", "holders", "entity_rule", "noise")}
        inputs = {**said["inputs"], **details}
        steps = inputs.pop("steps")
        claim = uedp_claim(steps=steps, delta=certificate.delta, **inputs)
        event = uedp_release(**{n: inputs[n] for n in signature(uedp_release).parameters})
    except (KeyError, TypeError, AttributeError, TacitError):
        return None
    executed = {e: n for e, n in contents.releases().items() if not isinstance(e, Public)}
    return claim if executed == {event: steps} else None


def _compare(unit: str, certified: Cost, found: Cost, same_code: bool) -> Check:
    """By the same code the figures are equal; by other code the certified one may be larger."""
    said, now = float(certified.epsilon), float(found.epsilon)
    figures = {"epsilon", "no_less_than", "opinions", "true_positive_rate", "accuracy"}
    close = said == now or math.isclose(said, now, rel_tol=1e-6)
    ok = (close and _near(certified, found)) if same_code else _no_better(certified, found)
    ok = ok and certified.model_dump(exclude=figures) == found.model_dump(exclude=figures)
    detail = f"certified {up(said)}, recomputed {up(now)}"
    if not ok and up(said) == up(now):
        detail += ", and its details differ"
    return Check(f"epsilon for {unit}", ok, detail)


def _no_better(certified: Cost, found: Cost) -> bool:
    """Whether figures by other code promise no more than ours allow."""
    said, now = float(certified.epsilon), float(found.epsilon)
    gains = certified.true_positive_rate.keys() == found.true_positive_rate.keys() and all(
        value >= found.true_positive_rate[fpr] * (1 - 1e-3)
        for fpr, value in certified.true_positive_rate.items()
    )
    gains = gains and certified.accuracy >= found.accuracy * (1 - 1e-3)
    # A finer grid than the one shown may be tighter by half a per cent.
    opinions = all(float(value) >= now * 0.99 for value in certified.opinions.values())
    return now <= said * (1 + 1e-6) and gains and opinions and float(certified.no_less_than) <= said


def _near(one: Cost, other: Cost) -> bool:
    """Whether all other figures are the same, up to the last digits of floating point."""

    def figures(cost: Cost) -> dict[str, float]:
        made = {"no less than": cost.no_less_than, "accuracy": cost.accuracy}
        made |= {f"opinion {name}": value for name, value in cost.opinions.items()}
        made |= {f"rate {name}": value for name, value in cost.true_positive_rate.items()}
        return {name: float(value) for name, value in made.items()}

    mine, theirs = figures(one), figures(other)
    return mine.keys() == theirs.keys() and all(
        value == theirs[name] or math.isclose(value, theirs[name], rel_tol=1e-6, abs_tol=1e-9)
        for name, value in mine.items()
    )


def _file_checks(certificate: Certificate, run: Path) -> Iterator[Check]:
    yield from _page_checks(run, _pages_of(certificate))
    weights = [name for name in certificate.files if name.endswith(".safetensors")]
    said = f"{len(certificate.files)} file(s) are named, {len(weights)} of them weights"
    yield Check("manifest", bool(weights), said if weights else "no weights are named, so this "
                "would certify any model")  # fmt: skip
    for name, digest in certificate.files.items():
        found = digest_in(run, name)
        left_out = found is None and name.startswith(f"{KEPT}/") and not (run / name).exists()
        detail = "as certified" if found == digest else "missing" if found is None else "differs"
        if left_out:
            detail = "not here, which takes nothing away"
        yield Check(f"file {name}", found == digest or left_out, detail)
    inside, unknown = not_covered(run, certificate.files)
    if inside:
        yield Check("not covered", True, f"keep inside: {', '.join(inside)}")
    if unknown:
        yield Check("not covered", False, f"not of this run, take away: {', '.join(unknown)}")


def _pages_of(certificate: Certificate) -> dict[str, str]:
    return {
        "certificate.md": certificate_markdown(certificate),
        "certificate.html": certificate_html(certificate),
    }


def _page_checks(folder: Path, pages: Mapping[str, str]) -> Iterator[Check]:
    """The pages for people: what is there must say the same; somebody may share the JSON alone."""
    for name, wanted in pages.items():
        path = folder / name
        if not (path.exists() or path.is_symlink()):
            continue
        try:
            same = not path.is_symlink() and path.read_bytes() == wanted.encode()
        except OSError:
            same = False
        yield Check(name, same, "says the same" if same else "says something else")


# --- sanitized text -----------------------------------------------------------------------------

_FOLLOWS = (
    "standing", "notion", "mechanism", "sentence", "epsilon_per_distance", "epsilon_0", "reach",
    "assumptions", "not_covered", "public", "context", "columns", "data", "randomness",
)  # fmt: skip
"""What must follow from the ledger."""


def verify_sanitized(folder: Path) -> list[Check]:
    """Everything that can be checked about the folder beside a sanitized corpus."""
    try:
        certificate = read_local(folder / FILE)
        contents = read_ledger(folder / "ledger.jsonl")
    except TacitError as error:
        return [Check("certificate and ledger", False, str(error))]
    bound = contents.closing == binding(certificate)
    detail = "binds this certificate and the corpus" if bound else "binds something else"
    checks = [
        *_readable(contents),
        Check(
            "ledger digest",
            contents.digest == certificate.ledger_digest
            and len(contents.entries) == certificate.ledger_entries,
            f"{len(contents.entries):,} in the ledger, {certificate.ledger_entries:,} certified",
        ),
        Check("ledger's last line", bound, detail if contents.closing else "is missing"),
    ]
    try:
        checks += _local_recomputed(certificate, contents)
    except TacitError as error:
        checks.append(Check("promise", False, str(error)))
    checks += _page_checks(folder, pages(certificate))
    checks += _files_beside(certificate, folder)
    checks.append(_others(folder))
    return checks


def _local_recomputed(certificate: LocalCertificate, contents: LedgerContents) -> Iterator[Check]:
    fresh = issue_local(contents, certificate.files)
    for name in _FOLLOWS:
        shown = getattr(fresh, name)
        told = isinstance(shown, float | str) and name != "sentence"
        said = f"{shown}, as recomputed" if told else "as recomputed"
        fits = shown == getattr(certificate, name)
        yield Check(name.replace("_", " "), fits, said if fits else "differs from what holds")


def _files_beside(certificate: LocalCertificate | Certificate, folder: Path) -> Iterator[Check]:
    """The corpus, which lies beside the folder of its certificate."""
    named = bool(certificate.files)
    yield Check("output", named, f"{len(certificate.files)} file(s) named" if named else "none")
    for name, digest in certificate.files.items():
        found = digest_in(folder.resolve().parent, name) if Path(name).name == name else None
        detail = "as certified" if found == digest else "missing" if found is None else "differs"
        yield Check(f"file {name}", found == digest, detail)


def _others(folder: Path) -> Check:
    """Whatever else lies in the folder: nobody may take it for a part of what is certified."""
    inside, unknown = not_covered(folder, ())
    if unknown:
        named = ", ".join(unknown)
        return Check("other files", False, f"not covered by this certificate, take out: {named}")
    return Check("other files", True, f"not covered: {', '.join(inside)}" if inside else "none")
