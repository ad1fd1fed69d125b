"""Accounts, tokens and the audit log: for admins, but for `me`."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from tacit.server import Json
from tacit.server.api.access import (
    REFUSALS,
    After,
    AnyCaller,
    IdPath,
    Limit,
    RequestContext,
    requires,
)
from tacit.server.identity import Permission, Role
from tacit.server.run_requests import Id, Name, RequestModel

router = APIRouter(tags=["accounts"], responses=REFUSALS)
Admin = Annotated[RequestContext, requires("accounts")]
LogReader = Annotated[RequestContext, requires("audit-log")]
Password = Annotated[str, Field(min_length=12, max_length=200)]


class NewAccount(RequestModel):
    """A person or a device."""

    name: Name
    role: Role
    password: Annotated[Password | None, Field(description="Only for the pages.")] = None


class AccountChange(RequestModel):
    """What may change about an account."""

    disabled: bool | None = None
    password: Password | None = None


class NewToken(RequestModel):
    """A token of an account, with all that its role and your own token allow, or less."""

    account: Id
    label: Annotated[str, Field(max_length=100, pattern=r"^[^\x00-\x1f]*$")] = ""
    scopes: Annotated[tuple[Permission, ...], Field(max_length=20)] | None = None
    dataset: Annotated[Id | None, Field(description="Only for this dataset.")] = None
    days: Annotated[float | None, Field(gt=0, le=36_500, description="Valid for so long.")] = None


@router.get("/me", summary="Who you are to this server")
def me(ctx: AnyCaller) -> Json:
    """The name, role and permissions of the token at hand."""
    caller = ctx.caller
    return {
        "account": caller.account, "name": caller.name, "role": caller.role,
        "permissions": sorted(caller.permissions), "dataset": caller.dataset,
    }  # fmt: skip


@router.post("/accounts", status_code=201, summary="Make an account")
def add_account(asked: NewAccount, ctx: Admin) -> Json:
    """A name, a role, and for the pages a password."""
    made = ctx.services.identity.add_account(asked.name, asked.role, asked.password, by=ctx.caller)
    ctx.note("make account", made["id"], asked.role)
    return made


@router.get("/accounts", summary="All accounts")
def accounts(ctx: Admin, after: After = "", limit: Limit = 1000) -> list[Json]:
    """Without passwords."""
    return ctx.services.identity.accounts(after=after, limit=limit)


@router.patch("/accounts/{account}", summary="Disable an account, or set its password")
def change_account(account: IdPath, asked: AccountChange, ctx: Admin) -> Json:
    """A disabled account's tokens are refused from the next request on."""
    found = ctx.services.identity.change_account(account, by=ctx.caller, **asked.model_dump())
    ctx.note("disable account" if asked.disabled else "change account", account)
    return found


@router.post("/tokens", status_code=201, summary="Give out a token")
def add_token(asked: NewToken, ctx: Admin) -> Json:
    """The answer is the only time that the token is shown."""
    made = ctx.services.identity.add_token(by=ctx.caller, **asked.model_dump())
    ctx.note("give out token", made["id"], made["account"])
    return made


@router.get("/tokens", summary="All tokens, without their secrets")
def tokens(ctx: Admin, after: After = "", limit: Limit = 1000) -> list[Json]:
    """Whose they are, what for, and whether they were revoked."""
    return ctx.services.identity.tokens(after=after, limit=limit)


@router.delete("/tokens/{token}", summary="Revoke a token")
def revoke(token: IdPath, ctx: Admin) -> dict[str, bool]:
    """It is refused from the next request on."""
    ctx.services.identity.revoke(token)
    ctx.note("revoke token", token)
    return {"revoked": True}


@router.get("/audit-log", summary="Who did what")
def audit_log(
    ctx: LogReader,
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[Json]:
    """The latest entries first; `before` a number for the page before."""
    return ctx.services.log.lines(before=before, limit=limit)
