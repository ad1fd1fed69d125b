"""Calls made up from the API's own description, as each role and as a stranger.

Nothing may fail inside, and whoever may not do a thing must not succeed in it.
"""

import re
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis import GenerationMode

from support.people import MATRIX, everybody
from tacit.server.api import make_app
from tacit.server.identity import ROLES
from tacit.server.services import Services
from tacit.server.settings import ServerSettings

ALLOWED = {
    (method, re.sub(r"/(0|{d})(?=/|$)", "/*", path)): roles for method, path, _, roles in MATRIX
}


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Services, str]]:
    """The description, a server whose queue does not move, and a dataset with a record."""
    folder = tmp_path_factory.mktemp("described") / "server"
    settings = ServerSettings(folder=folder, requests_per_second=1e6, burst=10**6, queue=10**6)
    services = Services.open(settings)
    services.jobs.close()
    caller = everybody(services)["admin"]
    dataset = services.datasets.add("diary", caller, limits={"users": 1.0})["id"]
    schema = schemathesis.openapi.from_asgi("/openapi.json", make_app(services))
    yield schema, services, dataset
    services.close()


def requests_of(schema: Any, dataset: str) -> st.SearchStrategy[Any]:
    """Calls that fit the description and calls that do not, half of them about a real dataset."""
    made = []
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            made.append(operation.as_strategy(generation_mode=mode))
            if operation.path.startswith("/v1/datasets/{dataset}"):
                names = re.findall(r"{(\w+)}", operation.path)
                known = {name: "0" for name in names} | {"dataset": dataset}
                made.append(operation.as_strategy(generation_mode=mode, path_parameters=known))
    return st.one_of(made)


def examine(made_up: tuple[Any, Services, str], role: str, cases: int) -> None:
    schema, services, dataset = made_up
    token = ""
    if role != "stranger":
        account = next(a for a in services.identity.accounts() if a["name"] == f"some {role}")
        token = services.identity.add_token(account["id"])["token"]

    @hypothesis.given(requests_of(schema, dataset))
    @hypothesis.settings(
        max_examples=cases, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )
    def one(case: Any) -> None:
        headers = {"Authorization": f"Bearer {token}" if token else "none"}
        answer = case.call(headers=headers)
        said = (case.method, case.path, answer.status_code)
        assert answer.status_code < 500, said
        roles = ALLOWED.get((case.method, re.sub(r"{\w+}", "*", case.path)), {role})
        if role not in roles:
            assert answer.status_code >= 400, said
        if role == "stranger" and case.path.startswith("/v1"):
            assert answer.status_code in (401, 429), said

    one()


@pytest.mark.parametrize("role", [*ROLES, "stranger"])
def test_some_calls(made_up: tuple[Any, Services, str], role: str) -> None:
    examine(made_up, role, 40)


@pytest.mark.slow
@pytest.mark.parametrize("role", [*ROLES, "stranger"])
def test_many_calls(made_up: tuple[Any, Services, str], role: str) -> None:
    examine(made_up, role, 2000)
