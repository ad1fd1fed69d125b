"""The tables: what migrations make is what the code expects, on every database."""

import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from tacit.errors import DataError, TacitError, UsageError
from tacit.server.services import Services
from tacit.server.settings import ServerSettings
from tacit.server.storage import Fact, Storage, Table


def test_migrations_make_the_tables_that_the_code_expects(settings: ServerSettings) -> None:
    storage = Storage(settings)
    with storage.read() as session:
        context = MigrationContext.configure(session.connection())
        assert compare_metadata(context, Table.metadata) == []
    storage.close()
    # A database that is up to date stays as it is.
    Storage(settings).close()


def test_a_database_of_an_older_schema_is_refused_with_a_sentence(settings: ServerSettings) -> None:
    storage = Storage(settings)
    with storage.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0002'"))
    storage.close()
    with pytest.raises(DataError, match="another version of tacit"):
        Storage(settings)


def test_what_was_written_is_there_after_a_restart(settings: ServerSettings) -> None:
    services = Services.open(settings)
    token = services.identity.first_admin()
    assert token is not None
    services.close()
    services = Services.open(settings)
    assert services.identity.first_admin() is None
    assert services.identity.caller(token).role == "admin"
    services.close()


def test_a_transaction_that_fails_leaves_nothing(services: Services) -> None:
    def broken() -> None:
        with services.storage.write() as session:
            session.add(Fact(name="half", value="done"))
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    with services.storage.read() as session:
        assert session.get(Fact, "half") is None


def test_one_server_at_a_time_has_a_folder(lite: Services) -> None:
    with pytest.raises(UsageError, match="in use by another server"):
        Services.open(lite.settings)


def test_a_database_keeps_to_its_folder(settings: ServerSettings, tmp_path: Path) -> None:
    Services.open(settings).close()
    other = ServerSettings(folder=tmp_path / "other", database=settings.address)
    with pytest.raises(UsageError, match="belongs to another folder"):
        Services.open(other)


@pytest.mark.parametrize("database", ["mysql://x", "nonsense", "postgresql://nobody@127.0.0.1:1/x"])
def test_a_database_that_cannot_be_used_is_refused(tmp_path: Path, database: str) -> None:
    with pytest.raises(TacitError):
        Services.open(ServerSettings(folder=tmp_path / "server", database=database))


def test_who_writes_all_the_time_lets_others_write(lite: Services) -> None:
    """Whoever asks while a transaction runs is next, not whoever has just written."""
    storage, order = lite.storage, []
    inside, go_on = threading.Event(), threading.Event()

    def again_and_again() -> None:
        for number in range(3):
            with storage.write():
                order.append("greedy")
                if number == 0:
                    inside.set()
                    go_on.wait(30)

    def once() -> None:
        with storage.write():
            order.append("patient")

    greedy, patient = threading.Thread(target=again_and_again), threading.Thread(target=once)
    greedy.start()
    inside.wait(30)
    patient.start()
    while not storage._turns._waiting:
        threading.Event().wait(0.001)
    go_on.set()
    greedy.join(30)
    patient.join(30)
    assert order == ["greedy", "patient", "greedy", "greedy"]
