"""Callers of each role, as tests need them."""

from tacit.server.identity import ROLES, Caller, Role
from tacit.server.services import Services


def somebody(services: Services, role: Role, name: str | None = None) -> Caller:
    """A caller of a role, with a token."""
    account = services.identity.add_account(name or f"some {role}", role)
    return services.identity.caller(services.identity.add_token(account["id"])["token"])


def everybody(services: Services) -> dict[Role, Caller]:
    """One caller of each role."""
    return {role: somebody(services, role) for role in ROLES}
