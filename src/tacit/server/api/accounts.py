"""Accounts, tokens and the audit log: for admins, but for `me`."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from tacit.server.api.access import REFUSALS, IdPath, Known, Serving, need
from tacit.server.identity import Caller, Permission, Role
from tacit.server.run_requests import Id, Name

router = APIRouter(tags=["accounts"], responses=REFUSALS)
Admin = Annotated[Caller, Depends(need("accounts"))]
Reader = Annotated[Caller, Depends(need("audit-log"))]


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Password = Annotated[str, Field(min_length=12, max_length=200)]


class NewAccount(_Asked):
    """A person or a device."""

    name: Name
    role: Role
    password: Annotated[Password | None, Field(description="Only for the pages.")] = None


class AccountChange(_Asked):
    """What may change about an account."""

    disabled: bool | None = None
    password: Password | None = None


class NewToken(_Asked):
    """A token of an account, with all that its role may do, or less."""

    account: Id
    label: Annotated[str, Field(max_length=100, pattern=r"^[^\x00-\x1f]*$")] = ""
    scopes: Annotated[tuple[Permission, ...], Field(max_length=20)] | None = None
    dataset: Annotated[Id | None, Field(description="Only for this dataset.")] = None
    days: Annotated[float | None, Field(gt=0, le=36_500, description="Valid for so long.")] = None


@router.get("/me", summary="Who you are to this server")
def me(caller: Known) -> dict[str, Any]:
    """The name, role and permissions of the token at hand."""
    return {
        "account": caller.account,
        "name": caller.name,
        "role": caller.role,
        "permissions": sorted(caller.permissions),
        "dataset": caller.dataset,
    }


@router.post("/accounts", status_code=201, summary="Make an account")
def add_account(asked: NewAccount, caller: Admin, services: Serving) -> dict[str, Any]:
    """A name, a role, and for the pages a password."""
    made = services.identity.add_account(asked.name, asked.role, asked.password)
    services.note(caller, "make account", made["id"], asked.role)
    return made


@router.get("/accounts", summary="All accounts")
def accounts(caller: Admin, services: Serving) -> list[dict[str, Any]]:
    """Without passwords."""
    return services.identity.accounts()


@router.patch("/accounts/{account}", summary="Disable an account, or set its password")
def change_account(
    account: IdPath, asked: AccountChange, caller: Admin, services: Serving
) -> dict[str, Any]:
    """A disabled account's tokens are worth nothing from the next request on."""
    found = services.identity.change_account(
        account, disabled=asked.disabled, password=asked.password
    )
    what = "disable account" if asked.disabled else "change account"
    services.note(caller, what, account)
    return found


@router.post("/tokens", status_code=201, summary="Give out a token")
def add_token(asked: NewToken, caller: Admin, services: Serving) -> dict[str, Any]:
    """The answer is the only time that the token is shown."""
    made = services.identity.add_token(
        asked.account,
        label=asked.label,
        scopes=asked.scopes,
        dataset=asked.dataset,
        days=asked.days,
    )
    services.note(caller, "give out token", made["id"], made["account"])
    return made


@router.get("/tokens", summary="All tokens, without what they are")
def tokens(caller: Admin, services: Serving) -> list[dict[str, Any]]:
    """Whose they are, what for, and whether they were revoked."""
    return services.identity.tokens()


@router.delete("/tokens/{token}", summary="Revoke a token")
def revoke(token: IdPath, caller: Admin, services: Serving) -> dict[str, bool]:
    """From the next request on it is worth nothing."""
    services.identity.revoke(token)
    services.note(caller, "revoke token", token)
    return {"revoked": True}


@router.get("/audit-log", summary="Who did what")
def audit_log(
    caller: Reader,
    services: Serving,
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[dict[str, Any]]:
    """The latest lines first; `before` a number for the page before."""
    return services.log.lines(before=before, limit=limit)
