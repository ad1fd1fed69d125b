"""Servers on SQLite and on a PostgreSQL that is started for the tests; a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.browsing import NO_BROWSER, Peopled, Visitor, chromium, started_browser
from support.living import Living
from support.postgresql import NONE_FOUND, postgres_binaries, postgres_server
from tacit.server.services import Services
from tacit.server.settings import ServerSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """Addresses of new, empty databases on a server of our own."""
    binaries = postgres_binaries()
    if binaries is None:
        pytest.skip(NONE_FOUND)
    with postgres_server(binaries) as new_database:
        yield new_database


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ServerSettings:
    """A new folder with a new database, once of each kind."""
    database = None
    if request.param == "postgresql":
        database = request.getfixturevalue("postgres")()
    return ServerSettings(folder=tmp_path / "server", database=database)


@pytest.fixture
def services(settings: ServerSettings) -> Iterator[Services]:
    opened = Services.open(settings)
    yield opened
    opened.close()


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Services]:
    """On SQLite only, where the database makes no difference."""
    opened = Services.open(ServerSettings(folder=tmp_path / "server"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """The system's Chromium."""
    path = chromium()
    if path is None:
        pytest.skip(NO_BROWSER)
    pytest.importorskip("playwright", reason="no playwright: the pages are not looked at")
    with started_browser(path) as opened:
        yield opened


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peopled]:
    """A server with pages, somebody of each role, text with a secret in it, and a run."""
    living = Living(tmp_path_factory.mktemp("site") / "server", pages=True)
    try:
        yield Peopled(living)
    finally:
        living.stop()


@pytest.fixture
def visitor(browser: "Browser") -> Iterator[Callable[..., Visitor]]:
    """Opens windows; in the end none of them asked another host, and no script failed."""
    opened: list[Visitor] = []

    def open_window(address: str, **options: object) -> Visitor:
        opened.append(Visitor(browser, address, **options))
        return opened[-1]

    yield open_window
    for one in opened:
        one.close()
