"""The front page: for strangers, who are told and asked nothing that is anybody's."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import httpx
import pytest

from support.browsing import PICTURES, WAIT, Peopled, Visitor, picture
from support.living import Living
from tacit.saved_json import write_fields
from tacit.server import showcase
from tacit.server.errors import Busy
from tacit.server.pages.welcome import look
from tacit.server.services import Services
from tacit.server.settings import ServerSettings

Open = Callable[..., Visitor]


@pytest.fixture
def stranger(site: Peopled) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site.address, timeout=60, trust_env=False) as client:
        yield client


def test_a_stranger_is_shown_what_is_sensitive_and_nothing_is_kept(
    site: Peopled, stranger: httpx.Client
) -> None:
    assert stranger.get("/").headers["location"] == "/welcome"
    page = stranger.get("/welcome")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert site.SECRET not in page.text
    text = "Mail vogelbeerbaum@example.org today."
    found = stranger.post("/welcome/look", json={"text": text}).json()
    assert "".join(part for part, _ in found) == text
    assert ["vogelbeerbaum@example.org", "e-mail addresses"] in found
    for path in site.living.folder.rglob("*"):
        if path.is_file():
            assert b"vogelbeerbaum" not in path.read_bytes(), path


def test_strangers_are_looked_at_slowly_and_from_here_only(
    site: Peopled, stranger: httpx.Client
) -> None:
    crossed = stranger.post(
        "/welcome/look", json={"text": "a"}, headers={"Origin": "https://evil.example"}
    )
    assert crossed.status_code == 403
    long = stranger.post("/welcome/look", json={"text": "planted " * 1000})
    assert long.status_code == 409
    assert "planted" not in long.text
    codes = [stranger.post("/welcome/look", json={"text": ""}).status_code for _ in range(40)]
    assert codes[0] == 200
    assert 429 in codes


def test_no_more_texts_are_looked_at_than_there_is_room_for(lite: Services) -> None:
    room = BoundedSemaphore(1)
    assert look(lite, room, "Call (212) 555-0147.")[1] == ["(212) 555-0147", "telephone numbers"]
    room.acquire()
    with pytest.raises(Busy):
        look(lite, room, "Call (212) 555-0147.")


def made_by_hand() -> dict[str, Any]:
    """As `make_showcase` writes it, with other numbers for each model."""

    def model(epsilon: float | None, rank: int) -> dict[str, Any]:
        said = {begun: f"said at {epsilon}" for begun in showcase.BEGINNINGS}
        guesses = [["1234", 0.5], ["4321", 0.25], ["0000", 0.125]]
        return {"epsilon": epsilon, "said": said, "right": 0.5, "start_right": 0.4,
                "rank": rank, "guesses": guesses}  # fmt: skip

    models = [model(None, 1), model(1.0, 5000), model(8.0, 4000)]
    return {"format": showcase.FORMAT, "version": showcase.VERSION, "dialogs": 10, "users": 5,
            "secret": "1234", "before": "My PIN is ", "times": 40, "possible": 10_000,
            "models": models}  # fmt: skip


def test_the_front_page_shows_the_trained_models_side_by_side(visitor: Open, site: Peopled) -> None:
    path = showcase.path_of(ServerSettings(folder=site.living.folder))
    me = visitor(site.address)
    me.go("/welcome")
    me.sees("tacit serve showcase")
    try:
        if PICTURES:  # of what real models say
            showcase.make_showcase(ServerSettings(folder=site.living.folder))
            me.go("/welcome")
            picture(me.page, "welcome", height=1500)
        write_fields(path, made_by_hand())
        me.go("/welcome")
        me.sees("Read out: the secret is its first guess of 10,000.")
        me.sees("guess number 4,000")
        me.page.get_by_label("Protected: choose epsilon").press("ArrowLeft")
        me.sees("guess number 5,000")
        assert me.page.get_by_text("guess number 4,000").is_hidden()
        me.page.get_by_label("Your text").fill("Write to ann@example.org.")
        me.page.locator("mark", has_text="ann@example.org").wait_for(timeout=WAIT)
        me.page.set_viewport_size({"width": 420, "height": 800})
        assert me.page.evaluate("document.documentElement.scrollWidth") <= 420
    finally:
        path.unlink(missing_ok=True)


def test_an_admin_tries_with_made_up_data(visitor: Open, site: Peopled) -> None:
    me = visitor(site.address)
    me.sign_in(site.tokens["admin"])
    me.go("/datasets")
    me.press("Try with made-up data")
    me.page.wait_for_url("**/datasets/0*")
    me.sees("records (texts)")
    with site.living.client() as admin:
        made = next(d for d in admin.call("GET", "/datasets") if d["name"] == "made-up dialogs")
    assert made["budget"]["limits"] == {"users+names": 12.0}


@pytest.mark.slow
def test_the_front_page_can_be_turned_off(tmp_path: Path) -> None:
    living = Living(tmp_path / "server", None, "--no-welcome", pages=True)
    try:
        with httpx.Client(base_url=living.address, timeout=60, trust_env=False) as client:
            assert client.get("/").headers["location"].startswith("/sign-in")
            assert client.get("/welcome").headers["location"] == "/sign-in"
            assert client.post("/welcome/look", json={"text": "a"}).status_code == 409
    finally:
        living.stop()


@pytest.mark.slow
def test_the_attack_reads_the_secret_out_of_the_plain_model_only(tmp_path: Path) -> None:
    settings = ServerSettings(folder=tmp_path)
    made = showcase.make_showcase(settings, say=lambda _: None, scale=0.1, epsilons=(1.0,))
    plain, private = made["models"]
    assert (plain["epsilon"], plain["rank"]) == (None, 1)
    assert plain["guesses"][0][0] == made["secret"]
    assert private["rank"] > 100  # by chance it is less once in a hundred times
    assert showcase.read_showcase(settings) == json.loads(json.dumps(made)) | {
        "format": showcase.FORMAT, "version": showcase.VERSION
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["showcase.json"]
