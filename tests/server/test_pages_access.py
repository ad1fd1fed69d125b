"""Who gets in, from which site, and what a browser is told to allow."""

import re
from collections.abc import Iterator
from datetime import timedelta
from http.client import HTTPConnection

import httpx
import pytest
from fastapi.routing import APIRoute
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.typing import Origin

from support.browsing import Peopled
from support.people import MATRIX, everybody
from tacit.server.api import accounts, claims, datasets, models, runs
from tacit.server.api.access import check
from tacit.server.errors import NotAllowed, NotAuthenticated
from tacit.server.services import Services
from tacit.server.storage import PageSession, now

COOKIE = "tacit_session"


@pytest.fixture
def stranger(site: Peopled) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site.address, timeout=60, trust_env=False) as client:
        yield client


def signed_in(client: httpx.Client, **fields: str) -> httpx.Response:
    key = re.search(r'name="key" value="([^"]+)"', client.get("/sign-in").text)
    assert key is not None
    return client.post("/sign-in", data={"key": key.group(1), **fields})


def form_key_of(client: httpx.Client, path: str) -> str:
    found = re.search(
        r'name=\\?\\?"key\\?\\?" value=\\?\\?"([0-9a-f]{64})', page_text(client, path)
    )
    assert found is not None
    return found.group(1)


def page_text(client: httpx.Client, path: str) -> str:
    text = client.get(path).text
    return text.replace("&lt;", "<").replace("&gt;", ">")


# --- sessions, without a browser ----------------------------------------------------------------


def test_a_session_ends_with_what_it_came_from(lite: Services) -> None:
    identity, sessions = lite.identity, lite.sessions
    account = identity.add_account("somebody", "analyst", "a long password")["id"]
    token = identity.add_token(account, scopes=["models:use"])
    by_token = sessions.open(identity.caller(token["token"]))
    assert sessions.caller(by_token).permissions == {"models:use"}
    by_password = sessions.open(identity.check_password("somebody", "a long password"))
    assert "plan" in sessions.caller(by_password).permissions
    identity.revoke(token["id"])
    identity.change_account(account, password="another password")
    for secret in (by_token, by_password):
        with pytest.raises(NotAuthenticated, match="sign in again"):
            sessions.caller(secret)
    last = sessions.open(identity.check_password("somebody", "another password"))
    identity.change_account(account, disabled=True)
    with pytest.raises(NotAuthenticated):
        sessions.caller(last)


def test_a_session_ends_by_itself_and_by_signing_out(lite: Services) -> None:
    caller = lite.identity.check_password(
        lite.identity.add_account("a", "consumer", "a long password")["name"], "a long password"
    )
    one, other = lite.sessions.open(caller), lite.sessions.open(caller)
    lite.sessions.end(one)
    with pytest.raises(NotAuthenticated):
        lite.sessions.caller(one)
    assert lite.sessions.caller(other).name == "a"
    with lite.storage.write() as session:
        for row in session.query(PageSession):
            assert other not in row.digest
            row.expires = now() - timedelta(seconds=1)
    with pytest.raises(NotAuthenticated):
        lite.sessions.caller(other)
    with pytest.raises(NotAuthenticated):
        lite.sessions.caller("never given out")


def test_a_code_signs_in_once(lite: Services) -> None:
    token = lite.identity.first_admin()
    assert token is not None
    code = lite.sessions.code_for(token)
    assert lite.sessions.by_code(code).role == "admin"
    with pytest.raises(NotAuthenticated, match="used before"):
        lite.sessions.by_code(code)


def test_pages_ask_of_a_call_what_the_api_asks(lite: Services) -> None:
    callers = everybody(lite)
    routes: dict[tuple[str, str], APIRoute] = {
        (next(iter(route.methods or ())), route.path): route
        for part in (accounts, claims, datasets, models, runs)
        for route in part.router.routes
        if isinstance(route, APIRoute)
    }
    seen = set()
    for method, path, _, roles in MATRIX:
        pattern = path.removeprefix("/v1").replace("{d}", "X").replace("/0", "/X")
        found = [r for (m, p), r in routes.items() if m == method
                 and re.sub(r"\{\w+\}", "X", p) == pattern]  # fmt: skip
        assert len(found) == 1, path
        seen.add((method, found[0].path))
        for role, caller in callers.items():
            if role in roles:
                check(found[0].endpoint, caller)
            else:
                with pytest.raises(NotAllowed):
                    check(found[0].endpoint, caller)
    assert seen == set(routes)
    with pytest.raises(NotAllowed):
        check(len, callers["admin"])  # what has no rule is refused


# --- over the wire ------------------------------------------------------------------------------


def test_a_stranger_gets_to_the_sign_in_page_only(site: Peopled, stranger: httpx.Client) -> None:
    for path in ("/datasets", f"/datasets/{site.dataset}", "/people", "/nothing",
                 f"/models/{site.run}/download", f"/runs/{site.run}/report"):  # fmt: skip
        answer = stranger.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/sign-in?next=/")
    assert stranger.post(f"/datasets/{site.dataset}/records/file").status_code == 401
    assert stranger.get("/v1/datasets").status_code == 401
    assert stranger.get("/v1/nothing", headers=bearer(site)).json()["message"] == "Not Found"


def bearer(site: Peopled) -> dict[str, str]:
    return {"Authorization": f"Bearer {site.tokens['admin']}"}


def test_a_session_is_a_cookie_that_scripts_cannot_read(
    site: Peopled, stranger: httpx.Client
) -> None:
    answer = signed_in(stranger, token=site.tokens["consumer"], next="/models")
    assert (answer.status_code, answer.headers["location"]) == (303, "/models")
    said = next(c for c in answer.headers.get_list("set-cookie") if c.startswith(COOKIE))
    assert "HttpOnly" in said
    assert "SameSite=lax" in said
    assert site.tokens["consumer"] not in said
    # A session is for pages: the API wants a token.
    assert stranger.get("/v1/models").status_code == 401
    page = stranger.get("/models")
    rules = dict(
        r.strip().split(" ", 1) for r in page.headers["content-security-policy"].split(";")
    )
    assert rules["default-src"] == "'none'"
    assert "unsafe-inline" not in rules["script-src"]
    assert rules["connect-src"] == rules["form-action"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    nonce = re.search(r"'nonce-([^']+)'", rules["script-src"])
    assert nonce is not None
    assert re.findall(r"<script(?! nonce=\"" + re.escape(nonce.group(1)) + ")", page.text) == []
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("after", ["//evil.example", "https://evil.example", "/\\evil", "x"])
def test_signing_in_leads_to_this_server_only(
    site: Peopled, stranger: httpx.Client, after: str
) -> None:
    answer = signed_in(stranger, token=site.tokens["consumer"], next=after)
    assert answer.headers["location"] == "/"


def test_forms_of_another_site_do_nothing(site: Peopled, stranger: httpx.Client) -> None:
    evil = {"Origin": "https://evil.example"}
    refused = stranger.post("/sign-in", data={"token": site.tokens["admin"]}, headers=evil)
    assert refused.status_code == 403
    no_key = stranger.post("/sign-in", data={"token": site.tokens["admin"], "key": "x"})
    assert no_key.status_code == 401
    assert COOKIE not in stranger.cookies

    signed_in(stranger, token=site.tokens["contributor"])
    path = f"/datasets/{site.dataset}/records/file"
    upload = {"file": ("mine.txt", b"a planted text\n")}
    key = form_key_of(stranger, "/my-text")
    wrong = stranger.post(path, files=upload, data={"key": "0" * 64})
    assert wrong.status_code == 403
    crossed = stranger.post(path, files=upload, data={"key": key}, headers=evil)
    assert crossed.status_code == 403
    assert stranger.post("/sign-out", data={"key": "x"}).headers["location"] == "/"
    assert "a planted text" not in page_text(stranger, "/my-text")
    right = stranger.post(path, files=upload, data={"key": key})
    assert (right.status_code, right.headers["location"]) == (303, "/my-text")
    mine = page_text(stranger, "/my-text")
    assert "a planted text" in mine
    assert site.SECRET not in mine
    assert stranger.post("/sign-out", data={"key": key}).headers["location"] == "/sign-in"
    assert stranger.get("/my-text").status_code == 303


def test_the_channel_is_for_who_has_signed_in_from_here(
    site: Peopled, stranger: httpx.Client
) -> None:
    signed_in(stranger, token=site.tokens["consumer"])
    cookie = f"{COOKIE}={stranger.cookies[COOKIE]}"
    page = stranger.get("/models").text
    found = re.search(r"'client_id': '([0-9a-f-]+)'|\"client_id\": ?\"([0-9a-f-]+)\"", page)
    assert found is not None
    client = found.group(1) or found.group(2)

    def joined(cookie: str | None, origin: str, client: str = client) -> bool:
        address = site.address.replace("http", "ws") + "/_nicegui_ws/socket.io/"
        query = f"?EIO=4&transport=websocket&client_id={client}&tab_id=t&document_id=d"
        headers = {"Cookie": cookie} if cookie else {}
        try:
            with connect(
                address + query, additional_headers=headers, origin=Origin(origin), proxy=None
            ):
                return True
        except WebSocketException:
            return False

    assert joined(cookie, site.address)
    assert not joined(None, site.address)
    assert not joined("tacit_session=" + "x" * 43, site.address)
    assert not joined(cookie, "https://evil.example")
    with httpx.Client(base_url=site.address, timeout=60, trust_env=False) as admin:
        signed_in(admin, token=site.tokens["admin"])
        text = admin.get("/datasets").text
        other = re.search(r"'client_id': '([0-9a-f-]+)'|\"client_id\": ?\"([0-9a-f-]+)\"", text)
        assert other is not None
        theirs = other.group(1) or other.group(2)
        assert not joined(cookie, site.address, theirs)  # somebody else's page


def test_passwords_are_asked_slowly(site: Peopled, stranger: httpx.Client) -> None:
    with site.living.client() as admin:
        made = {"name": "Slow", "role": "consumer", "password": "a long password"}
        admin.call("POST", "/accounts", again=False, json=made)
    answer = signed_in(stranger, name="Slow", password="a long password")
    assert answer.headers["location"] == "/"
    tries = [
        signed_in(stranger, name="Slow", password="a wrong one").status_code for _ in range(12)
    ]
    assert tries[0] == 401
    assert tries[-1] == 429
    with site.living.client() as admin:
        lines = admin.call("GET", "/audit-log?limit=30")
    assert any((d["account"], d["outcome"]) == ("Slow", "refused") for d in lines)


def test_what_is_too_large_is_a_sentence(site: Peopled, stranger: httpx.Client) -> None:
    signed_in(stranger, token=site.tokens["contributor"])
    connection = HTTPConnection(site.address.removeprefix("http://"), timeout=60)
    connection.putrequest("POST", f"/datasets/{site.dataset}/records/file")
    for name, value in {"Content-Length": str(1 << 30), "Accept": "text/html",
                        "Cookie": f"{COOKIE}={stranger.cookies[COOKIE]}"}.items():  # fmt: skip
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    assert answer.headers["content-type"].startswith("text/html")
    assert "The request is too large; at most" in answer.read().decode()
    connection.close()


def test_a_report_runs_in_a_box_of_its_own(site: Peopled, stranger: httpx.Client) -> None:
    run = site.trained()
    signed_in(stranger, token=site.tokens["analyst"])
    answer = stranger.get(f"/runs/{run}/report")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith(
        "sandbox allow-scripts; default-src"
    )
    assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
    archive = stranger.get(f"/models/{run}/download")
    assert archive.headers["content-type"] == "application/zip"
    gone = stranger.get("/models/nothing/download")
    assert gone.status_code == 404
    assert "There is no such run" in gone.text
