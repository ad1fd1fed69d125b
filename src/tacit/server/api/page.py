"""The description of the API as a page that asks no other host for anything."""

import json
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui;margin:2rem auto;max-width:60rem;padding:0 1rem;"
    "color-scheme:light dark}summary{cursor:pointer}pre{overflow:auto;font-size:.85em}"
    "code{font-weight:600}small{opacity:.7}"
)


def page_of(description: dict[str, Any]) -> str:
    """Every call with its parameters and what it takes."""
    parts = []
    for path, calls in description["paths"].items():
        for method, call in calls.items():
            parts.append(_call(path, method, call))
    named = description.get("components", {}).get("schemas", {})
    schemas = json.dumps(named, indent=2, allow_nan=False)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>tacit: the API</title>"
        "<meta name=viewport content='width=device-width'>"
        f"<style>{_STYLE}</style><h1>{escape(description['info']['title'])}</h1>"
        f"<p>{escape(description['info']['description'])} The same for machines: "
        "<a href=/openapi.json>openapi.json</a>.</p>"
        + "".join(parts)
        + f"<h2>Shapes</h2><pre>{escape(schemas)}</pre></html>"
    )


def _call(path: str, method: str, call: dict[str, Any]) -> str:
    rows = [
        f"<li>{escape(p['name'])} <small>({escape(p['in'])}"
        f"{', needed' if p.get('required') else ''})</small> {escape(p.get('description', ''))}"
        for p in call.get("parameters", [])
    ]
    for kind, body in call.get("requestBody", {}).get("content", {}).items():
        shape = body.get("schema", {}).get("$ref", "").rpartition("/")[2] or "a value"
        rows.append(f"<li>body: {escape(shape)} <small>({escape(kind)})</small>")
    return (
        f"<details><summary><code>{escape(method.upper())} {escape(path)}</code> "
        f"{escape(call.get('summary', ''))}</summary><p>{escape(call.get('description', ''))}</p>"
        f"<ul>{''.join(rows)}</ul></details>"
    )
