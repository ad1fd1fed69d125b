"""A real browser, and the server that it looks at."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from support.living import Living

if TYPE_CHECKING:  # a machine without it runs all other tests
    from playwright.sync_api import Browser, BrowserContext, Locator, Page, WebSocket

NO_BROWSER = "no Chromium on the path: the pages are not looked at"
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
PICTURES = bool(os.environ.get("TACIT_SCREENSHOTS"))
"""Whether pictures for the docs are asked for."""
WAIT = 60_000
"""Milliseconds: cores are shared, and nothing here is about speed."""


def chromium() -> str | None:
    """The system's browser."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if found := shutil.which(name):
            return found
    return None


@contextmanager
def started_browser(path: str) -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        browser.close()


class Visitor:
    """Somebody at a browser window; everything that goes in and out of it is kept."""

    def __init__(self, browser: "Browser", address: str, **options: Any) -> None:
        self.address = address
        options.setdefault("viewport", {"width": 1200, "height": 850})
        self.context: BrowserContext = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.addresses: list[str] = []
        self.complaints: list[str] = []
        self.heard: list[str] = []
        self.context.on("request", lambda request: self.addresses.append(request.url))
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("websocket", self._listen)

    def _console(self, message: Any) -> None:
        # What a policy forbids is an error on the console, and so is a script that fails.
        wanted = "the server responded with a status of" in message.text
        if message.type == "error" and not wanted:
            self.complaints.append(message.text)

    def _listen(self, channel: "WebSocket") -> None:
        self.addresses.append(channel.url)
        channel.on("framereceived", lambda frame: self.heard.append(str(frame)))

    def go(self, path: str) -> None:
        self.page.goto(self.address + path)
        self.page.locator("h1").first.wait_for()

    def sign_in(self, token: str) -> None:
        self.go("/sign-in")
        self.page.get_by_label("Token").fill(token)
        self.page.keyboard.press("Enter")
        self.page.locator("header.top").wait_for()

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def follow(self, name: str) -> None:
        self.page.get_by_role("link", name=name, exact=True).first.click()

    def sees(self, words: str) -> None:
        self.page.get_by_text(words).first.wait_for()

    def everything(self) -> str:
        """All that this window was given: the page, and what came over its channel."""
        return "\n".join([self.page.content(), *self.heard])

    def close(self) -> None:
        """Nothing was asked of another host, and the browser had nothing to complain about."""
        self.context.close()
        here = urlsplit(self.address).netloc
        outside = {a for a in self.addresses if a.split(":")[0] not in ("data", "blob", "about")
                   and urlsplit(a).netloc != here}  # fmt: skip
        assert not outside
        assert not self.complaints, self.complaints


def picture(page: "Page", name: str, *, of: "Locator | None" = None, height: int = 850) -> None:
    """A picture for the docs, where they are asked for (TACIT_SCREENSHOTS=1)."""
    if not PICTURES:
        return
    from PIL import Image

    folder = Path(__file__).parents[2] / "docs" / "figures" / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    page.mouse.move(0, 0)
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": size["width"], "height": height})
    if of is None:
        page.evaluate("scrollTo(0, 0)")
    else:
        of.evaluate("e => scrollTo(0, e.getBoundingClientRect().top + scrollY - 70)")
    page.wait_for_timeout(1000)
    path = folder / f"{name}.png"
    page.screenshot(path=path)
    # Few colours are on a page, so a palette holds them all.
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
    page.set_viewport_size(size)
    assert path.stat().st_size < 150_000


class Peopled:
    """A server that people use already."""

    SECRET = "Quarzsandhalde"
    OWN = "Kiefernzapfen"

    def __init__(self, living: Living) -> None:
        self.living, self.address = living, living.address
        self.tokens = {"admin": living.token}
        with living.client() as admin:
            self.dataset = admin.add_dataset("letters", limits={"users": 8})["id"]
            for role in ("analyst", "contributor", "consumer"):
                account = admin.add_account(f"a {role}", role)
                self.tokens[role] = admin.add_token(account["id"])
            for number in range(30):
                text = f"My order 4829-11{number:02d} is late. {self.SECRET}, call (212) 555-0147."
                split = "valid" if number % 10 == 9 else "train"
                admin.add_record(self.dataset, text, user=f"user {number % 10}", split=split)
        with living.client(self.tokens["contributor"]) as contributor:
            contributor.add_record(self.dataset, f"I like {self.OWN}.")
        with living.client() as admin:
            self.run = admin.start_run(self.dataset, RUN)["id"]

    def trained(self) -> str:
        """The run when it is done."""
        with self.living.client() as admin:
            admin.wait(self.run)
        return self.run


RUN: dict[str, Any] = {
    "name": "first words",
    "plan": {"protect": "users", "epsilon": 3, "steps": 3, "user_rate": 0.3, "users": 10},
    "model": {"kind": "lstm", "config": {"embedding_size": 8, "hidden_size": 8, "layers": 1}},
    "tokenizer": {"size": 400},
    "context": 24,
}
