"""The notebooks of `examples/` run as they are, at small sizes, and hold nobody's text."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
TOOL: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "notebooks.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_SMALL", "1")
    notebook = TOOL["read"](path)
    names = TOOL["run"](notebook, tmp_path)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell["outputs"] for cell in cells)
    shown = json.dumps([cell["outputs"] for cell in cells])
    texts = names["mail"].column("text").to_pylist() if "mail" in names else []
    assert not [text for text in texts if json.dumps(text)[1:61] in shown]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_a_page_of_the_documentation(path: Path) -> None:
    notebook = TOOL["read"](path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    page = TOOL["page"](notebook)
    assert page.startswith("# ")
    assert f"notebooks/{path.stem}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_a_cell_shows_what_it_prints_and_ends_with(tmp_path: Path) -> None:
    source = ["class A:\n", "    def _repr_html_(self):\n", "        return '<b>\\n\\n</b>'\n",
              "print(1)\n", "A()"]  # fmt: skip
    code = {"cell_type": "code", "source": source, "outputs": []}
    words = {"cell_type": "markdown", "source": ["# Title"]}
    made = {"cells": [words, code]}
    TOOL["run"](made, tmp_path)
    assert TOOL["page"](made).split("\n\n")[2:] == ["```text\n1\n```", "<b> </b>\n"]


def test_there_are_six() -> None:
    assert len(NOTEBOOKS) == 6
