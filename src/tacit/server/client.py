"""The other side: send text without losing or doubling any, follow runs, take models along."""

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, Self

from tacit import errors
from tacit.corpus import Corpus
from tacit.errors import DataError, TacitError, UsageError, require_package
from tacit.server import Json
from tacit.server import errors as server_errors
from tacit.server.errors import Busy, NotFound
from tacit.server.sharing import unpack_model

_ERRORS: dict[str, type[TacitError]] = {
    name: kind
    for name, kind in {**vars(errors), **vars(server_errors)}.items()
    if isinstance(kind, type) and issubclass(kind, TacitError)
}
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
            raise UsageError("The address or the token is not valid; check both.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
                problem = _refusal(answer)[1]
            except self._lost as error:
                problem = f"The server does not answer ({type(error).__name__})."
                if not again:
                    raise Busy(problem) from None
            if time.monotonic() + wait > until:
                raise Busy(f"{problem} Gave up after {self.patience:g} seconds.")
            time.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT) * (0.8 + 0.4 * secrets.randbelow(1000) / 1000)

    def save(self, method: str, path: str, to: Path, **options: Any) -> None:
        """One call whose answer is a file, which is written as it comes."""
        with self._http.stream(method, path, **options) as answer:
            if answer.status_code != 200:
                answer.read()
                _checked(answer)
            with to.open("wb") as out:
                for part in answer.iter_bytes():
                    out.write(part)

    def _get(self, path: str, **params: Any) -> Json:
        return dict(self.call("GET", path, params=params))

    def _post(
        self, path: str, body: Mapping[str, Any] | None = None, again: bool = False,
        key: str | None = None,
    ) -> Json:  # fmt: skip
        """What is repeated by itself only with a key, since that might make two."""
        headers = {"Idempotency-Key": key} if key is not None else {}
        again = again or key is not None
        return dict(self.call("POST", path, again=again, json=dict(body or {}), headers=headers))

    def _all(self, path: str) -> Iterator[Json]:
        """Everything in a list, page by page."""
        after = ""
        while page := self.call("GET", path, params={"after": after}):
            yield from page
            after = page[-1]["id"]

    # --- records ------------------------------------------------------------------------------

    def add_record(self, dataset: str, text: str, *, key: str | None = None, **fields: Any) -> str:
        """Store one text; its id. The same key stores the same text once."""
        body = {"text": text} | {k: v for k, v in fields.items() if v is not None}
        headers = {"Idempotency-Key": _key(key)}
        path = f"/datasets/{dataset}/records"
        return str(self.call("POST", path, json=body, headers=headers)["record"])

    def add_file(self, dataset: str, file: Path, *, key: str | None = None, **form: str) -> Json:
        """Store a file of records, all of it or nothing."""
        file = Path(file)
        return self._upload(dataset, file.name, file.read_bytes(), _key(key), form)

    def add_corpus(
        self, dataset: str, corpus: Corpus, *, key: str | None = None, consent: bool = False
    ) -> int:
        """Store the records of a corpus in parts; how many there are.

        With a key of your own, a call that was broken off goes on where it stopped. `consent` says
        that nothing need protect them, for a dataset in which nothing does.
        """
        form = {"consent": "true"} if consent else {}
        key = _key(key)
        sent = 0
        for part, lines in enumerate(_parts(corpus)):
            content = "".join(line + "\n" for line in lines).encode()
            self._upload(dataset, "part.jsonl", content, f"{key}.{part}", form)
            sent += len(lines)
        return sent

    def _upload(
        self, dataset: str, name: str, content: bytes, key: str, form: Json | None = None
    ) -> Json:
        path, headers = f"/datasets/{dataset}/records/file", {"Idempotency-Key": key}
        files = {"file": (name, content)}
        return dict(self.call("POST", path, headers=headers, files=files, data=form or {}))

    def my_records(self, dataset: str) -> Iterator[Json]:
        """Your records; for an admin, everybody's."""
        yield from self._all(f"/datasets/{dataset}/records")

    def forget(self, dataset: str, user: str | None = None) -> Json:
        """Delete your records, or as an admin a user's; what that means is in the answer."""
        params = {"user": user} if user is not None else {}
        return dict(self.call("DELETE", f"/datasets/{dataset}/records", params=params))

    # --- the rest, by its name ------------------------------------------------------------------

    def me(self) -> Json:
        """Who the token makes you."""
        return self._get("/me")

    def add_account(self, name: str, role: str) -> Json:
        """A new account (admin)."""
        return self._post("/accounts", {"name": name, "role": role})

    def add_token(self, account: str, **limits: Any) -> str:
        """A new token of an account (admin)."""
        return str(self._post("/tokens", {"account": account, **limits})["token"])

    def add_dataset(self, name: str, **fields: Any) -> Json:
        """A new dataset with its budget (admin)."""
        return self._post("/datasets", {"name": name, **fields})

    def dataset_named(self, name: str) -> str:
        """The id of the dataset of that name, or the name itself if it is an id."""
        return _named(name, "dataset", self._all("/datasets"))

    def budget(self, dataset: str) -> Json:
        """What is spent, and what is left."""
        return self._get(f"/datasets/{dataset}/budget")

    def detect(self, dataset: str, **asked: Any) -> Json:
        """Find what is sensitive; comes back when it is done."""
        made = self._post(f"/datasets/{dataset}/detections", asked, key=_key(None))
        return self._waited(f"/detections/{made['id']}")

    def plan(self, dataset: str, asked: Mapping[str, Any]) -> Json:
        """The dry run of a run."""
        return self._post(f"/datasets/{dataset}/plans", asked, again=True)

    def start_run(self, dataset: str, asked: Mapping[str, Any], *, key: str | None = None) -> Json:
        """Start a run; the same key starts the same run once."""
        return self._post(f"/datasets/{dataset}/runs", asked, key=_key(key))

    def run(self, run: str) -> Json:
        """A run and how far it is."""
        return self._get(f"/runs/{run}")

    def events(self, run: str) -> Iterator[tuple[str, Json]]:
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
                    raise Busy("The server stopped answering.") from None
            time.sleep(0.5)

    def wait(self, run: str) -> Json:
        """A run when it has ended; a failure is an error."""
        for kind, fields in self.events(run):
            if kind == "end" and fields["state"] != "done":
                raise DataError(f"The run is {fields['state']}: {self.run(run)['message']}")
        return self.run(run)

    def cancel(self, run: str) -> Json:
        """Stop a run."""
        return self._post(f"/runs/{run}/cancel")

    def resume(self, run: str) -> Json:
        """Go on with a run that stopped."""
        return self._post(f"/runs/{run}/resume")

    def attack(self, run: str, *using: str) -> Json:
        """Attack a run's model; comes back when it is done."""
        made = self._post(f"/runs/{run}/attacks", {"using": list(using)}, key=_key(None))
        return self._waited(f"/jobs/{made['id']}")

    def models(self) -> list[Json]:
        """The models that you may use."""
        return list(self._all("/models"))

    def model_named(self, name: str) -> str:
        """The id of the latest model of that name, or the name itself if it is an id."""
        return _named(name, "model", self.models())

    def predict(self, model: str, text: str, **options: Any) -> Json:
        """What a model on the server answers; it may carry a warning."""
        return self._post(f"/models/{model}/predict", {"text": text, **options}, again=True)

    def certificate(self, model: str) -> Json:
        """A model's certificate."""
        return self._get(f"/models/{model}/certificate")

    def pull(self, model: str, folder: Path) -> str | None:
        """Take a model along as a folder; its warning, where nothing is proved about it."""
        folder = Path(folder)
        if folder.exists():
            raise UsageError(f"{folder} exists; give the name of a new folder.")
        answer = self._sent("GET", f"/models/{model}/download")
        unpack_model(BytesIO(answer.content), folder)
        warning: str | None = answer.headers.get("X-Tacit-Warning")
        return warning

    def _waited(self, path: str) -> Json:
        while True:
            found: Json = self.call("GET", path)
            if found["state"] == "done":
                return found
            if found["state"] in ("failed", "cancelled"):
                raise DataError(f"The {found['kind']} job {found['state']}: {found['message']}")
            time.sleep(0.3)


def _named(name: str, kind: str, among: Iterable[Json]) -> str:
    for one in among:
        if name in (one["name"], one["id"]):
            return str(one["id"])
    raise NotFound(f"There is no {kind} {name!r} that this token may use.")


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


def _events(lines: Iterable[str]) -> Iterator[tuple[str | None, str, Json]]:
    event: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line:
            event[name] = value
        elif "data" in event:
            yield event.get("id"), event.get("event", ""), json.loads(event["data"])
            event = {}


def _checked(answer: Any) -> Any:
    """The answer; a refusal as an error of this package."""
    if answer.status_code < 400:
        return answer
    kind, message = _refusal(answer)
    raise _ERRORS.get(kind, DataError)(message)


def _refusal(answer: Any) -> tuple[str, str]:
    try:
        found = answer.json()
        return str(found["error"]), str(found["message"])
    except (ValueError, KeyError, TypeError):
        return "DataError", f"The server answered {answer.status_code}."
