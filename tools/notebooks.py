"""Run the notebooks of `examples/`, keep what they show, and give them to the documentation.

    python tools/notebooks.py [NAME ...]    # all of them; TACIT_SMALL=1 for small sizes

A notebook is run in this process, in a folder of its own, without Jupyter. What is kept of it is
what cells print and what their last line shows; the notebooks generate their text, so no output
holds anybody's. As a hook of mkdocs, this file makes a page of each.
"""

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "examples"
PAGES = "notebooks"
_LARGEST = 50_000
"""Characters of HTML that are kept of a cell: a whole report is for those who run it."""
Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    """A notebook as it is written."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def write(path: Path, notebook: Notebook) -> None:
    """As Jupyter writes it, so that differences are small."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


def run(notebook: Notebook, folder: Path) -> dict[str, Any]:
    """Run all cells in order, where they may write; keep what they show, and give their names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(folder):
        count = 0
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                cell["execution_count"] = count
                cell["outputs"] = _outputs("".join(cell["source"]), names, count)
    return names


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What a cell prints, and what its last line shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    shown: Any = None
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    made: list[dict[str, Any]] = []
    if said.getvalue():
        made.append({"output_type": "stream", "name": "stdout", "text": _lines(said.getvalue())})
    if shown is not None:
        data = {"text/plain": _lines(repr(shown))}
        html = shown._repr_html_() if hasattr(shown, "_repr_html_") else ""
        if 0 < len(html) < _LARGEST:
            data["text/html"] = _lines(html)
        made.append(
            {
                "output_type": "execute_result",
                "execution_count": count,
                "data": data,
                "metadata": {},
            }
        )
    return made


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


# --- pages --------------------------------------------------------------------------------------


def page(notebook: Notebook) -> str:
    """A notebook as Markdown: what it says, its code, and what that showed."""
    return "\n\n".join(_cell(cell) for cell in notebook["cells"]) + "\n"


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return source
    parts = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", [])})
        html = "".join(data.get("text/html", ()))
        plain = "".join(data["text/plain"]).rstrip()
        # One line: Markdown ends a block of HTML at an empty one.
        parts.append(re.sub(r"\s*\n\s*", " ", html) if html else f"```text\n{plain}\n```")
    return "\n\n".join(parts)


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: a page for each notebook."""
    from mkdocs.structure.files import File

    for path in sorted(FOLDER.glob("*.ipynb")):
        name = f"{PAGES}/{path.stem}.md"
        files.append(File.generated(config, name, content=page(read(path))))
    return files


def _wanted(names: list[str]) -> Iterator[Path]:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            yield path


def main() -> None:
    """Run those that are named, or all, and keep what they show."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for path in _wanted(sys.argv[1:]):
        notebook = read(path)
        with tempfile.TemporaryDirectory() as folder:
            run(notebook, Path(folder))
        write(path, notebook)
        print(path.stem)


if __name__ == "__main__":
    main()
