"""What came out of runs: predictions, downloads, certificates, reports."""

import json
import tempfile
import zipfile
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.files import whole_file
from tacit.privacy.certificates.certificate import read_certificate
from tacit.privacy.certificates.manifest import SIGNATURE
from tacit.saved_json import spelled
from tacit.server import Json
from tacit.server.errors import NotFound
from tacit.server.identity import Caller
from tacit.server.jobs import Jobs
from tacit.server.predictions import Predictions, Question
from tacit.server.settings import ServerSettings
from tacit.server.sharing import KEY, SHARED, checked, promise_of, warning_of
from tacit.training.evaluation.verdicts import verdict_of


@dataclass(frozen=True)
class Models:
    """The finished runs, as models."""

    settings: ServerSettings
    jobs: Jobs
    predictions: Predictions

    def all(self, dataset: str | None = None, *, after: str = "", limit: int = 1000) -> list[Json]:
        """Models that are finished, the latest first; `after` the last one of the page before."""
        found = self.jobs.all("train", dataset, state="done", after=after, limit=limit)
        return [self._as_json(job) for job in found]

    def get(self, model: str) -> Json:
        """One model, with its promise and its warning."""
        self.folder(model)
        return self._as_json(self.jobs.get(model, "train"))

    def folder(self, model: str) -> Path:
        """Where a finished model lies."""
        if self.jobs.get(model, "train")["state"] != "done":
            raise NotFound("There is no such model, or its run has not finished.")
        return self.settings.job_folder(model) / "run"

    def _as_json(self, job: Json) -> Json:
        # As it stands now: an audit may have changed its standing.
        folder = self.settings.job_folder(job["id"]) / "run"
        certificate = read_certificate(folder / "certificate.json")
        return {
            "id": job["id"], "name": job["name"], "task": (job["result"] or {}).get("task"),
            "method": certificate.context.get("method"), **promise_of(certificate),
            "warning": warning_of(certificate), "continues": job["target"],
            "created": job["ended"],
        }  # fmt: skip

    def ask(
        self, model: str, caller: Caller, text: str, *, words: int, choices: int
    ) -> "tuple[Json, Future[Json]]":
        """What comes next, or a class, or tags, when it is its turn.

        And what to say beside it: a warning where nothing is proved.
        """
        folder = self.folder(model)
        warning = warning_of(read_certificate(folder / "certificate.json"))
        asked = Question(folder, text, words, choices)
        return {"model": model, "warning": warning}, self.predictions.ask(asked, caller)

    def archive(self, model: str) -> Path:
        """A zip of what may be shared; made anew where an audit changed a file since."""
        folder = self.folder(model)
        files = [folder / name for name in SHARED if (folder / name).is_file()]
        path = folder.parent / "model.zip"
        if path.exists() and all(f.stat().st_mtime <= path.stat().st_mtime for f in files):
            return path
        with whole_file(path) as draft, zipfile.ZipFile(draft, "w") as archive:
            for file in files:
                # Weights are random numbers to a compressor.
                weights = file.suffix == ".safetensors"
                kind = zipfile.ZIP_STORED if weights else zipfile.ZIP_DEFLATED
                archive.write(file, file.name, kind)
        return path

    def delete(self, model: str) -> Json:
        """Delete a model for good; what it released stays charged, and on record."""
        deleted = self.jobs.delete(model)
        self.predictions.forget(self.settings.job_folder(model) / "run")
        return deleted

    def verify(self, model: str) -> Json:
        """The model's certificate, recomputed."""
        folder = self.folder(model)
        key = self.settings.folder / f"{KEY}.pub"
        return checked(folder, key if (folder / SIGNATURE).exists() else None)

    def report(self, model: str, *, shareable: bool) -> dict[str, str]:
        """The report of a run as HTML, Markdown and JSON."""
        from tacit.reports.facts import read_all
        from tacit.reports.report import write_report

        folder, named = self.folder(model), self.jobs.get(model, "train")["name"]
        with tempfile.TemporaryDirectory(dir=self.settings.folder) as place:
            path, title = Path(place) / "report.html", "Privacy report"
            facts = [replace(one, name=named) for one in read_all([folder])]
            written = write_report(path, facts, title=title, shareable=shareable)
            return {path.suffix[1:]: path.read_text(encoding="utf-8") for path in written}

    def scores(self, model: str, what: str) -> Any:
        """Exact figures over private text: metrics.json or attacks.json."""
        path = self.folder(model) / f"{what}.json"
        if not path.exists():
            raise NotFound(f"The run has no {what} yet.")
        return spelled(json.loads(path.read_text(encoding="utf-8")))

    def outcomes(self, dataset: str | None = None) -> list[Json]:
        """What became of finished runs: how good their models are, and what attacks found."""
        done = [job for job in self.jobs.all("train", dataset) if job["state"] == "done"]
        return [{"run": job["id"], "not_private": self._outcome(job["id"])} for job in done]

    def _outcome(self, run: str) -> Json:
        from tacit.reports.facts import leakage_of, read_facts

        facts = read_facts(self.settings.job_folder(run) / "run")
        measure = facts.measure
        found = leakage_of(facts.scores.values(), first=True).values()
        return {
            "verdict": facts.verdict.as_json(),
            "words": facts.verdict.words,
            "measure": measure,
            "score": facts.utility(measure) if measure else None,
            "tokenizer": facts.tokenizer,
            "shown_by": [n for n, s in facts.scores.items()
                         if s.verdict is not None and s.verdict.leak == "shown"],
            "leakage": [
                {"label": one.headline.label, "value": one.value, "chance": one.headline.chance,
                 "interval": one.interval, "most": one.most}
                for one in found if one.value is not None
            ],
        }  # fmt: skip

    def verdict(self, model: str) -> dict[str, str]:
        """Whether a model is any good, in words and figures over private text."""
        return verdict_of(self.scores(model, "metrics")).as_json()
