"""The reference of the API as one page: every call with an example, and a way to try it.

It asks no other host for anything. A token that is typed into it stays in that window.
"""

import json
import secrets
from importlib.resources import files
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment

from tacit.server import Json

_DEEPEST = 4
_PLAIN = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "null": None}
_NAMED: Json = {
    "name": "diary", "text": "Dear diary, ...", "user": "ann", "limits": {"users": 8.0},
    "plan": {"protect": "users", "epsilon": 4.0, "users": 500}, "recipe": "auto",
    "detectors": ["patterns", "lists", "names"], "role": "analyst", "label": "laptop",
}  # fmt: skip
"""What fields of requests are like; of others, any value of their kind."""


def reference_page(described: Json) -> HTMLResponse:
    """The description of the API, `described` as OpenAPI has it."""
    groups: dict[str, list[Json]] = {}
    for path, calls in described["paths"].items():
        for method, call in calls.items():
            tag = (call.get("tags") or ["server"])[0]
            groups.setdefault(tag, []).append(_call(described, path, method, call))
    text = (files("tacit.server.api") / "docs.html.jinja").read_text(encoding="utf-8")
    nonce = secrets.token_urlsafe(16)
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    made = page.render(info=described["info"], groups=groups, nonce=nonce)
    return HTMLResponse(made, headers={"Content-Security-Policy": policy})


def _call(described: Json, path: str, method: str, call: Json) -> Json:
    kinds = (call.get("requestBody") or {}).get("content", {})
    kind = next(iter(kinds), "")
    schema = kinds[kind]["schema"] if kind else {}
    body = ""
    if kind == "application/json":
        asked = {} if not schema else example(described, schema)
        body = json.dumps(asked, indent=2, allow_nan=False)
    fields = _resolved(described, schema).get("properties", {}) if "form" in kind else {}
    return {
        "method": method.upper(), "path": path, "summary": call.get("summary", ""),
        "description": call.get("description", ""), "parameters": call.get("parameters") or [],
        "kind": kind, "body": body, "fields": list(fields),
        "fields_of_body": _fields(described, schema) if body else [],
        "answers": {code: a.get("description", "") for code, a in call["responses"].items()},
        "id": f"{method}{path}".replace("/", "-").replace("{", "").replace("}", ""),
    }  # fmt: skip


def _resolved(described: Json, schema: Json) -> Json:
    while "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].split("/")[-1]]
    return schema


def _fields(described: Json, schema: Json) -> list[Json]:
    """The fields of a request's body, with what is said of them."""
    found = _resolved(described, schema)
    needed = found.get("required", [])
    return [
        {"name": name, "required": name in needed, "description": one.get("description", "")}
        for name, one in found.get("properties", {}).items()
    ]


def example(described: Json, schema: Json, depth: int = 0) -> Any:
    """A value that fits a schema: what must be given, and fields that we know by name.

    >>> told = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"},
    ...         "words": {"type": "integer"}}}
    >>> example({}, told)
    {'text': 'Dear diary, ...'}
    """
    schema = _resolved(described, schema)
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if "enum" in schema:
        return schema["enum"][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return example(described, schema[name][0], depth)
    kind = schema.get("type", "object")
    if kind == "array":
        return [] if depth > _DEEPEST else [example(described, schema.get("items", {}), depth + 1)]
    if kind != "object":
        return _PLAIN.get(kind, "text")
    if depth > _DEEPEST:
        return {}
    needed = set(schema.get("required", ()))
    wanted = {
        name: one for name, one in schema.get("properties", {}).items()
        if name in needed or (not depth and name in _NAMED)
    }  # fmt: skip
    return {
        name: _NAMED[name] if name in _NAMED else example(described, one, depth + 1)
        for name, one in wanted.items()
    }
