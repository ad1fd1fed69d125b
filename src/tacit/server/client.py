"""The other side: send text without losing or doubling any, follow runs, take models along."""

import contextlib
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tacit.corpus import Corpus
from tacit.errors import (
    DataError,
    OverBudget,
    PrivacyRefused,
    TacitError,
    UsageError,
    require_package,
)
from tacit.server.errors import Busy, Conflict, NotAllowed, NotAuthenticated, NotFound, TooLarge
from tacit.server.sharing import unpack_model

_ERRORS: dict[str, type[TacitError]] = {
    kind.__name__: kind
    for kind in (
        UsageError, DataError, PrivacyRefused, OverBudget, NotFound, NotAllowed, NotAuthenticated,
        Conflict, TooLarge, Busy,
    )
}  # fmt: skip
_RETRIED = (429, 502, 503, 504)
_LONGEST_WAIT = 5.0


class Client:
    """A server at an address, with a token.

    Every call that fails on the way (the server restarts, the line breaks) is made again for up to
    `patience` seconds. Records carry a key of their own, so that one which arrived although its
    answer was lost is not stored twice.
    """

    def __init__(self, url: str, token: str, *, patience: float = 60.0) -> None:
        httpx = require_package("httpx", "The client")
        if not url.startswith(("http://", "https://")):
            raise UsageError("url is not an address; give http://HOST:PORT or https://HOST.")
        self.patience = patience
        self._lost = (httpx.TransportError,)
        try:
            self._http = httpx.Client(
                base_url=url.rstrip("/") + "/v1",
                headers={"Authorization": f"Bearer {token}"},
                timeout=httpx.Timeout(300.0, connect=10.0),
                trust_env=False,
            )
        except (httpx.InvalidURL, UnicodeEncodeError):
            raise UsageError("The address or the token cannot be: check both.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()

    # --- calls --------------------------------------------------------------------------------

    def call(self, method: str, path: str, *, again: bool = True, **options: Any) -> Any:
        """One call of the API; its answer as JSON, its refusal as an error of this package."""
        return self._sent(method, path, again=again, **options).json()

    def _sent(self, method: str, path: str, *, again: bool = True, **options: Any) -> Any:
        until, wait = time.monotonic() + self.patience, 0.1
        while True:
            try:
                answer = self._http.request(method, path, **options)
                if answer.status_code not in _RETRIED:
                    return _checked(answer)
                trouble = str(_message(answer))
            except self._lost as error:
                trouble = f"The server does not answer ({type(error).__name__})."
                if not again:
                    raise Busy(trouble) from None
            if time.monotonic() + wait > until:
                raise Busy(f"{trouble} Given up after {self.patience:g} seconds.")
            time.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT) * (0.8 + 0.4 * secrets.randbelow(1000) / 1000)

    # --- records ------------------------------------------------------------------------------

    def add_record(self, dataset: str, text: str, *, key: str | None = None, **fields: Any) -> str:
        """Store one text; its id. The same key stores the same text once."""
        body = {"text": text} | {k: v for k, v in fields.items() if v is not None}
        headers = {"Idempotency-Key": _key(key)}
        path = f"/datasets/{dataset}/records"
        return str(self.call("POST", path, json=body, headers=headers)["record"])

    def add_file(
        self, dataset: str, file: Path, *, key: str | None = None, **form: str
    ) -> dict[str, Any]:
        """Store a file of records, all of it or nothing."""
        file = Path(file)
        headers = {"Idempotency-Key": _key(key)}
        found: dict[str, Any] = self.call(
            "POST", f"/datasets/{dataset}/records/file", headers=headers, data=form,
            files={"file": (file.name, file.read_bytes())},
        )  # fmt: skip
        return found

    def add_corpus(self, dataset: str, corpus: Corpus, *, key: str | None = None) -> int:
        """Store the records of a corpus in parts; how many there are.

        With a key of your own, a call that was broken off goes on where it stopped.
        """
        key = _key(key)
        sent = 0
        for part, lines in enumerate(_parts(corpus)):
            content = "".join(line + "\n" for line in lines).encode()
            self.call(
                "POST", f"/datasets/{dataset}/records/file",
                headers={"Idempotency-Key": f"{key}.{part}"},
                files={"file": ("part.jsonl", content)},
            )  # fmt: skip
            sent += len(lines)
        return sent

    def my_records(self, dataset: str) -> Iterator[dict[str, Any]]:
        """Your records; for an admin, everybody's."""
        after = ""
        while page := self.call("GET", f"/datasets/{dataset}/records", params={"after": after}):
            yield from page
            after = page[-1]["id"]

    def forget(self, dataset: str, user: str | None = None) -> dict[str, Any]:
        """Delete your records, or as an admin a user's; what that means is in the answer."""
        params = {"user": user} if user is not None else {}
        found: dict[str, Any] = self.call("DELETE", f"/datasets/{dataset}/records", params=params)
        return found

    # --- the rest, by its name ------------------------------------------------------------------

    def me(self) -> dict[str, Any]:
        """Who the token makes you."""
        return dict(self.call("GET", "/me"))

    def add_account(self, name: str, role: str) -> dict[str, Any]:
        """A new account (admin)."""
        return dict(self.call("POST", "/accounts", again=False, json={"name": name, "role": role}))

    def add_token(self, account: str, **limits: Any) -> str:
        """A new token of an account (admin)."""
        asked = {"account": account, **limits}
        return str(self.call("POST", "/tokens", again=False, json=asked)["token"])

    def add_dataset(self, name: str, **fields: Any) -> dict[str, Any]:
        """A new dataset with its budget (admin)."""
        return dict(self.call("POST", "/datasets", again=False, json={"name": name, **fields}))

    def dataset_named(self, name: str) -> str:
        """The id of the dataset of that name, or the name itself if it is an id."""
        for one in self.call("GET", "/datasets"):
            if name in (one["name"], one["id"]):
                return str(one["id"])
        raise NotFound(f"There is no dataset {name!r} that this token may know of.")

    def budget(self, dataset: str) -> dict[str, Any]:
        """What is spent, and what is left."""
        return dict(self.call("GET", f"/datasets/{dataset}/budget"))

    def detect(self, dataset: str, **asked: Any) -> dict[str, Any]:
        """Find what is sensitive; comes back when it is done."""
        made = self.call("POST", f"/datasets/{dataset}/detections", again=False, json=asked)
        return self._waited(f"/detections/{made['id']}")

    def plan(self, dataset: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The dry run of a run."""
        return dict(self.call("POST", f"/datasets/{dataset}/plans", json=dict(asked)))

    def start_run(self, dataset: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Start a run; not made again by itself, since that might start two."""
        path = f"/datasets/{dataset}/runs"
        return dict(self.call("POST", path, again=False, json=dict(asked)))

    def run(self, run: str) -> dict[str, Any]:
        """A run and how far it is."""
        return dict(self.call("GET", f"/runs/{run}"))

    def events(self, run: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """A run's progress as it happens, through lost connections, until it ends."""
        last: str | None = None
        until = time.monotonic() + self.patience
        while True:
            headers = {"Last-Event-ID": last} if last is not None else {}
            try:
                with self._http.stream("GET", f"/runs/{run}/events", headers=headers) as answer:
                    if answer.status_code != 200:
                        answer.read()
                        _checked(answer)
                    for number, kind, fields in _events(answer.iter_lines()):
                        until = time.monotonic() + self.patience
                        last = number if number is not None else last
                        yield kind, fields
                        if kind == "end":
                            return
            except self._lost:
                if time.monotonic() > until:
                    raise Busy("The server does not answer any more.") from None
            time.sleep(0.5)

    def wait(self, run: str) -> dict[str, Any]:
        """A run when it has ended; a failure is an error."""
        for kind, fields in self.events(run):
            if kind == "end" and fields["state"] != "done":
                raise DataError(f"The run is {fields['state']}: {self.run(run)['message']}")
        return self.run(run)

    def cancel(self, run: str) -> dict[str, Any]:
        """Stop a run."""
        return dict(self.call("POST", f"/runs/{run}/cancel", again=False))

    def resume(self, run: str) -> dict[str, Any]:
        """Go on with a run that stopped."""
        return dict(self.call("POST", f"/runs/{run}/resume", again=False))

    def attack(self, run: str, *using: str) -> dict[str, Any]:
        """Attack a run's model; comes back when it is done."""
        made = self.call("POST", f"/runs/{run}/attacks", again=False, json={"using": list(using)})
        return self._waited(f"/jobs/{made['id']}")

    def models(self) -> list[dict[str, Any]]:
        """The models that you may use."""
        return list(self.call("GET", "/models"))

    def model_named(self, name: str) -> str:
        """The id of the latest model of that name, or the name itself if it is an id."""
        for one in self.models():
            if name in (one["name"], one["id"]):
                return str(one["id"])
        raise NotFound(f"There is no model {name!r} that this token may use.")

    def predict(self, model: str, text: str, **options: Any) -> dict[str, Any]:
        """What a model on the server answers; it may carry a warning."""
        return dict(self.call("POST", f"/models/{model}/predict", json={"text": text, **options}))

    def certificate(self, model: str) -> dict[str, Any]:
        """A model's certificate."""
        return dict(self.call("GET", f"/models/{model}/certificate"))

    def pull(self, model: str, folder: Path) -> str | None:
        """Take a model along as a folder; its warning, where nothing is proved about it."""
        folder = Path(folder)
        if folder.exists():
            raise UsageError(f"{folder} exists; give the name of a new folder.")
        answer = self._sent("GET", f"/models/{model}/download")
        folder.parent.mkdir(parents=True, exist_ok=True)
        archive = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.zip"
        try:
            archive.write_bytes(answer.content)
            unpack_model(archive, folder)
        finally:
            archive.unlink(missing_ok=True)
        warning: str | None = answer.headers.get("X-Tacit-Warning")
        return warning

    def _waited(self, path: str) -> dict[str, Any]:
        while True:
            found: dict[str, Any] = self.call("GET", path)
            if found["state"] == "done":
                return found
            if found["state"] in ("failed", "cancelled"):
                raise DataError(f"The {found['kind']} job {found['state']}: {found['message']}")
            time.sleep(0.3)


def _key(given: str | None) -> str:
    """A key as the API takes it, the same for the same name; a new one if none is given."""
    return secrets.token_hex(16) if given is None else sha256(given.encode()).hexdigest()[:32]


def _parts(corpus: Corpus) -> Iterator[list[str]]:
    """Lines of at most some thousand records and some megabytes, the same every time."""
    part: list[str] = []
    size = 0
    for record in corpus.records():
        given = {k: v for k, v in record.row().items() if k != "id"}
        line = json.dumps(given, ensure_ascii=False, allow_nan=False)
        if part and (len(part) >= 2000 or size + len(line) > 4_000_000):
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line)
    if part:
        yield part


def _events(lines: Iterable[str]) -> Iterator[tuple[str | None, str, dict[str, Any]]]:
    number: str | None = None
    kind, data = "", ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "id":
            number = value
        elif name == "event":
            kind = value
        elif name == "data":
            data = value
        elif not line and data:
            yield number, kind, json.loads(data)
            number, kind, data = None, "", ""


def _checked(answer: Any) -> Any:
    if answer.status_code < 400:
        return answer
    kind = "DataError"
    with contextlib.suppress(ValueError, KeyError, TypeError):
        kind = str(answer.json()["error"])
    raise _ERRORS.get(kind, DataError)(_message(answer))


def _message(answer: Any) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"The server answered {answer.status_code}."
