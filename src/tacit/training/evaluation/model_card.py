"""The model card: what the model is, what it promises, and how to check that."""

import json

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
    """The card as Markdown with metadata; nothing in it was measured on private text."""
    private = run.spec.planned
    tags = ["tacit", *(["differential-privacy"] if private else [])]
    lines = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {_PIPELINES[run.task]}",
        f"tags: {json.dumps(tags, allow_nan=False)}",
        "---",
        "",
        f"# {run.model.kind} for {run.task}, method {run.method}",
        "",
        "## What it promises",
        "",
        "\n\n".join(in_short(certificate)),
        "",
        f"Standing: **{certificate.standing}**. The whole certificate, with its assumptions and "
        "what it does not cover, is `certificate.md`; `tacit verify FOLDER` recomputes it from "
        "the ledger.",
        "",
    ]
    if certificate.not_covered:
        lines += ["Not covered:", ""]
        lines += [f"- {what}" for what in certificate.not_covered]
        lines.append("")
    lines += ["## How to load it", "", "```python"]
    if run.model.kind not in ("gpt2", "bert", "llama", "folder"):
        lines += [
            "from tacit.training.models.registries import MODELS",
            f'MODELS["{run.model.kind}"]  # makes the family known to transformers',
        ]
    lines += [
        f"from transformers import AutoTokenizer, {_LOADERS[run.task]}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
        f'model = {_LOADERS[run.task]}.from_pretrained("FOLDER")',
        "```",
        "",
        "## How it was trained",
        "",
    ]
    lines += [f"- {name}: {_said(value)}" for name, value in certificate.context.items()]
    return "\n".join(lines) + "\n"


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    return str(value)
