"""Callers of each role, and who of them may call what."""

from typing import Any

from tacit.server.identity import ROLES, Caller, Role
from tacit.server.services import Services


def somebody(services: Services, role: Role, name: str | None = None) -> Caller:
    """A caller of a role, with a token."""
    account = services.identity.add_account(name or f"some {role}", role)
    return services.identity.caller(services.identity.add_token(account["id"])["token"])


def everybody(services: Services) -> dict[Role, Caller]:
    """One caller of each role."""
    return {role: somebody(services, role) for role in ROLES}


A, N, C, U, W = "admin", "analyst", "contributor", "consumer", "worker"
MATRIX: list[tuple[str, str, Any, set[str]]] = [
    ("GET", "/v1/me", None, {A, N, C, U, W}),
    ("GET", "/v1/accounts", None, {A}),
    ("POST", "/v1/accounts", {}, {A}),
    ("PATCH", "/v1/accounts/0", {}, {A}),
    ("GET", "/v1/tokens", None, {A}),
    ("POST", "/v1/tokens", {}, {A}),
    ("DELETE", "/v1/tokens/0", None, {A}),
    ("GET", "/v1/audit-log", None, {A}),
    ("POST", "/v1/datasets", {}, {A}),
    ("GET", "/v1/datasets", None, {A, N, C}),
    ("GET", "/v1/datasets/{d}", None, {A, N, C}),
    ("PATCH", "/v1/datasets/{d}", {"delta": 7}, {A}),
    ("GET", "/v1/datasets/{d}/description", None, {A, N}),
    ("GET", "/v1/datasets/{d}/budget", None, {A, N}),
    ("GET", "/v1/datasets/{d}/budget/history", None, {A, N}),
    ("POST", "/v1/datasets/{d}/plans", {"method": "?"}, {A, N}),
    ("POST", "/v1/datasets/{d}/plans/path", {"method": "?"}, {A, N}),
    ("POST", "/v1/datasets/{d}/records", {}, {A, C}),
    ("POST", "/v1/datasets/{d}/records/file", None, {A, C}),
    ("POST", "/v1/datasets/{d}/records/preview", {}, {A, C}),
    ("GET", "/v1/datasets/{d}/records", None, {A, C}),
    ("DELETE", "/v1/datasets/{d}/records", None, {A, C}),
    ("DELETE", "/v1/datasets/{d}/records/0", None, {A, C}),
    ("GET", "/v1/datasets/{d}/entity-lists", None, {A, N}),
    ("POST", "/v1/datasets/{d}/entity-lists", {}, {A, N}),
    ("POST", "/v1/datasets/{d}/entity-lists/file", None, {A, N}),
    ("GET", "/v1/datasets/{d}/entity-lists/0", None, {A, N}),
    ("DELETE", "/v1/datasets/{d}/entity-lists/0", None, {A, N}),
    ("GET", "/v1/datasets/{d}/detections", None, {A, N}),
    ("POST", "/v1/datasets/{d}/detections", {"detectors": []}, {A, N}),
    ("GET", "/v1/detections/0", None, {A, N}),
    ("GET", "/v1/detections/0/owners", None, {A, N}),
    ("GET", "/v1/detections/0/page", None, {A}),
    ("POST", "/v1/datasets/{d}/runs", {"method": "?"}, {A, N}),
    ("GET", "/v1/runs", None, {A, N}),
    ("GET", "/v1/outcomes", None, {A, N}),
    ("GET", "/v1/runs/0", None, {A, N}),
    ("GET", "/v1/runs/0/events", None, {A, N}),
    ("GET", "/v1/runs/0/progress", None, {A, N}),
    ("POST", "/v1/runs/0/cancel", None, {A, N}),
    ("POST", "/v1/runs/0/resume", None, {A, N}),
    ("GET", "/v1/runs/0/log", None, {A, N}),
    ("GET", "/v1/runs/0/metrics", None, {A, N}),
    ("POST", "/v1/runs/0/attacks", {}, {A, N}),
    ("POST", "/v1/runs/0/audits", {}, {A, N}),
    ("POST", "/v1/runs/0/evaluations", {}, {A, N}),
    ("GET", "/v1/runs/0/jobs", None, {A, N}),
    ("GET", "/v1/jobs/0", None, {A, N}),
    ("GET", "/v1/runs/0/report", None, {A, N}),
    ("GET", "/v1/models", None, {A, N, U}),
    ("GET", "/v1/models/0", None, {A, N, U}),
    ("DELETE", "/v1/models/0", None, {A}),
    ("POST", "/v1/models/0/predict", {"text": "x"}, {A, N, U}),
    ("GET", "/v1/models/0/download", None, {A, N, U}),
    ("GET", "/v1/models/0/certificate", None, {A, N, U}),
    ("GET", "/v1/models/0/certificate.html", None, {A, N, U}),
    ("GET", "/v1/models/0/verify", None, {A, N, U}),
    ("GET", "/v1/signing-key", None, {A, N, C, U, W}),
    ("POST", "/v1/certificates/verify", None, {A, N, C, U, W}),
    ("POST", "/v1/claims", {}, {A, W}),
    ("GET", "/v1/claims/0/files", None, {A, W}),
    ("POST", "/v1/claims/0/beat", None, {A, W}),
    ("POST", "/v1/claims/0/end", None, {A, W}),
]
"""Every call with a body that changes nothing, and the roles that may make it."""
