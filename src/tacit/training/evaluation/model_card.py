"""The model card: what the model is, what it promises, and how to check that."""

import json
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from tacit.privacy.certificates.certificate import Certificate
from tacit.privacy.certificates.explanation import in_short
from tacit.training.settings import Run

_PIPELINES = {
    "next-word": "text-generation",
    "masked-word": "fill-mask",
    "classification": "text-classification",
    "regression": "text-classification",
    "tagging": "token-classification",
}
_LOADERS = {
    "next-word": "AutoModelForCausalLM",
    "masked-word": "AutoModelForMaskedLM",
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
}


def model_card(run: Run, certificate: Certificate) -> str:
    """The card as Markdown with metadata; nothing in it was measured on private text.

    What `select: best` kept is a release that the ledger holds; a verdict on a split is none, so it
    does not stand here, not even in a word.
    """
    loads = loading(_LOADERS[run.task])
    if run.model.kind not in ("gpt2", "bert", "llama", "folder"):
        known = "makes the family known to transformers"
        loads = (
            f"{_MODELS}\nMODELS[{json.dumps(run.model.kind, allow_nan=False)}]  # {known}\n{loads}"
        )
    title = f"{run.model.kind} for {run.task}, method {run.method}"
    planned = run.spec.planned
    return card(title, certificate, loads, pipeline=_PIPELINES[run.task], planned=planned)


_MODELS = "from tacit.training.models.registries import MODELS"


def loading(loader: str) -> str:
    """How a folder with a tokenizer is loaded by a class of transformers."""
    return (
        f"from transformers import AutoTokenizer, {loader}\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n'
        f'model = {loader}.from_pretrained("FOLDER")'
    )


def card(
    title: str,
    certificate: Certificate,
    loads: str,
    *,
    pipeline: str | None = None,
    library: str = "transformers",
    planned: bool = True,
) -> str:
    """The card of any model that a certificate speaks of; `loads` is the code that loads it."""
    tags = ["tacit", *(["differential-privacy"] if planned else [])]
    source = (files(__package__) / "model_card.md.jinja").read_text(encoding="utf-8")
    page = Environment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(source)
    return page.render(
        title=title,
        certificate=certificate,
        tags=json.dumps(tags, allow_nan=False),
        pipeline=pipeline,
        library=library,
        loads=loads,
        planned=planned,
        in_short="\n\n".join(in_short(certificate)),
        kept=certificate.context.get("kept"),
        context={name: _said(value) for name, value in certificate.context.items()},
    )


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    return str(value)
