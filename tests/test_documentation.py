"""The documentation is executed: what it shows works, and what it points to is there."""

import doctest
import json
import os
import re
import shlex
from pathlib import Path

import click
import numpy as np
import pytest
import typer
import yaml
from typer.core import TyperGroup

from support.forking import run_python
from tacit.cli import app, run
from tacit.planning import recipes
from tacit.privacy.certificates.attacker_gain import CHOOSING, choosing

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FRONT = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES = [*FRONT, *sorted(path for path in DOCS.rglob("*.md") if not path.name.startswith("_"))]
HELP = DOCS / "reference" / "commands.md"  # made from the commands themselves

MAIL = """\
sender,body,folder
ann,"Write to bob@example.org, or call (212) 555-0147.",inbox
bob,"It is bob@example.org, order ORD-4829-1137.",sent
eve,Lunch at one?,inbox
ann,"Thanks! Bob's order is ORD-4829-1137, due 3 May 2024.",sent
"""


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: language and text."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```([a-z]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The `tacit` command lines of a page's fenced blocks, in order, without remarks."""
    lines = [line for language, text in blocks(page) if not language for line in text.splitlines()]
    return [
        line.partition(" # ")[0].removeprefix("tacit ").strip()
        for line in lines
        if line.startswith("tacit ") and page != HELP
    ]


def mentioned(page: Path) -> list[str]:
    """The `tacit` commands that a page's prose and tables name, whole or in part."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r"\s+", " ", line) for line in re.findall(r"`tacit ([a-z][^`]*)`", prose)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def named(pages: list[Path], of: object) -> list[pytest.ParameterSet]:
    return [
        pytest.param(line, id=f"{name_of(page)}: {line}") for page in pages for line in of(page)
    ]


def resolve(line: str) -> tuple[click.Command, list[str]]:
    """The command that a line calls, and the arguments that are left for it."""
    command: click.Command = typer.main.get_command(app)
    words = shlex.split(line)
    while isinstance(command, TyperGroup):
        default = getattr(command, "default", "")
        if words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        elif default and words:
            command = command.commands[default]
        else:
            break
    return command, words


def in_containers(folder: Path) -> list[str]:
    """The commands that containers run: of the services, and what a container does by itself."""
    services = yaml.safe_load((folder / "compose.yml").read_text("utf-8"))["services"]
    words = [service["command"] for service in services.values() if service.get("image") == "tacit"]
    words.append(json.loads((folder / "Containerfile").read_text("utf-8").rpartition("CMD ")[2]))
    return [shlex.join(one) for one in words]


@pytest.mark.parametrize("line", named(PAGES, commands) + named([ROOT / "deploy"], in_containers))
def test_every_command_line_is_understood(line: str) -> None:
    command, words = resolve(line)
    if isinstance(command, TyperGroup):  # a group that does something by itself
        assert command.invoke_without_command
        assert not words
        return
    # Parsed like a real call, and not carried out.
    with command.make_context(command.name, words):
        pass


@pytest.mark.parametrize("line", named(PAGES, mentioned))
def test_every_command_in_the_prose_exists(line: str) -> None:
    command, words = resolve(line)
    first = words[0] if words else "-"
    assert not isinstance(command, TyperGroup) or first.startswith("-") or first == "..."
    known = {name for parameter in command.params for name in parameter.opts}
    known |= {name for parameter in command.params for name in parameter.secondary_opts}
    assert {word for word in words if word.startswith("-")} <= known | {"--help"}


def test_the_quick_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of the quick start, in order."""
    monkeypatch.chdir(tmp_path)
    lines = commands(DOCS / "guides" / "quick-start.md")
    assert len(lines) >= 10
    for line in lines:
        assert run(shlex.split(line)) == 0, (line, capsys.readouterr().err)
    shown = capsys.readouterr().out
    assert "contradicted" in shown
    assert {"c.jsonl", "mentions.html", "degrees.png", "my-tagger", "plan.yml"} <= {
        path.name for path in tmp_path.iterdir()
    }


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "guides" / "own-data.md"], ids=name_of)
def test_your_own_data(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every command, in order, with an invented file where it wants one of yours."""
    monkeypatch.chdir(tmp_path)
    # As `make setup` leaves a machine: larger packaged models, which recipes prefer, take minutes.
    monkeypatch.setattr(recipes, "_installed", lambda package: package == "wordllama")
    # More people than the few that matter: a fifth of them takes part in a step.
    others = "".join(f"p{n},Shall we meet at {n} today?,inbox\n" for n in range(30))
    Path("mail.csv").write_text(MAIL + others)
    for line in commands(page):
        assert run(shlex.split(line)) == 0, (line, capsys.readouterr().err)
    for name in ("mail.parquet", "mentions.html"):
        assert Path(name).stat().st_size
    shown = " ".join(capsys.readouterr().out.split())
    assert "What this plan promises" in shown
    if page.name == "own-data.md":  # also the way that looks at who shares what
        assert Path("degrees.png").stat().st_size
        assert "bob@example.org" in shown  # the entity that two users share
    # A model that nobody judged is the worst way to end.
    assert re.search(r"Error rate [\d.]+: .*than always naming the most frequent label", shown)
    assert re.search(r"Perplexity [\d.,]+: .*than its public start", shown)


def test_sanitizing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first commands of the guide, with stand-ins of the same form as what they name."""
    monkeypatch.chdir(tmp_path)
    Path("sst2").mkdir()
    Path("sst2/train.tsv").write_text("sentence\tlabel\na fine , quiet film \t1\nno wit \t0\n")
    words = np.array(["a", "fine", ",", "quiet", "film", "no", "wit", "the", "loud"])
    np.savez("glove_100d_top40k.npz", words=words, vectors=np.eye(9, 100, dtype=np.float16))
    lines = commands(DOCS / "guides" / "sanitizing.md")[:6]
    assert lines[-1] == "verify sst2.certificate"
    for line in lines:
        assert run(shlex.split(line)) == 0, (line, capsys.readouterr().err)


def test_synthesizing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first commands of the guide, as they stand there."""
    monkeypatch.chdir(tmp_path)
    lines = commands(DOCS / "guides" / "synthesizing.md")[:4]
    assert lines[-1] == "verify synthetic.certificate"
    for line in lines:
        assert run(shlex.split(line)) == 0, (line, capsys.readouterr().err)
    assert Path("synthetic.quality.md").stat().st_size


# --- Python ----------------------------------------------------------------------------------


def programs() -> list[pytest.ParameterSet]:
    found = []
    for page in PAGES:
        texts = [text for language, text in blocks(page) if language == "python"]
        whole = [text for text in texts if ">>>" not in text]
        for number, text in enumerate(whole, 1):
            marks = [pytest.mark.slow] if "train(" in text else []
            found.append(pytest.param(text, id=f"{name_of(page)}-{number}", marks=marks))
    return found


@pytest.mark.parametrize("program", programs())
def test_every_program_runs(program: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if '"DATA"' in program:
        folder = request.getfixturevalue("data_dir").resolve()
        program = program.replace('"DATA"', repr(str(folder)))
    program = program.replace("range(5000)", "range(50)")  # what measures, runs on less, too
    done = run_python("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_program_of_the_readme_says_what_the_readme_says() -> None:
    (program,) = (text for language, text in blocks(ROOT / "README.md") if language == "python")
    done = run_python("-c", program)
    assert done.stdout == "0.0\n"
    assert "# 0.0" in program


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_dialog_gives_these_answers(page: Path) -> None:
    found = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert found.failed == 0


# --- pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["commands", "reference"])
def test_the_generated_pages_are_up_to_date(tool: str) -> None:
    # In a process of its own: it sets the width of the terminal for good.
    environment = {k: v for k, v in os.environ.items() if k != "TACIT_DATA"}
    done = run_python(str(ROOT / "tools" / f"{tool}.py"), "--check", env=environment)
    assert done.returncode == 0, f"{done.stderr}; run python tools/{tool}.py"


def anchor(heading: str) -> str:
    """A heading's name in a link, as GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        if place:
            headings = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
            assert place in [anchor(heading) for heading in headings], link


def test_every_page_is_reached_from_the_readme() -> None:
    """From it, or for a decision from the list of decisions."""
    readme = (ROOT / "README.md").read_text("utf-8")
    decisions = DOCS / "explanations" / "decisions"
    listed = (decisions / "index.md").read_text("utf-8")
    for page in PAGES[1:]:
        if page.parent == decisions and page.name != "index.md":
            assert f"({page.name})" in listed
        else:
            assert f"({name_of(page)})" in readme, name_of(page)


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = [page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS)]
    numbered = re.compile(r"decisions/\d{3}-")
    assert [page for page in pages if not numbered.search(page) and f": {page}" not in menu] == []


def test_the_site_loads_nothing_from_another_host() -> None:
    """Fonts are off, and the script that search needs in files is ours to give."""
    menu = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "font: false" in menu
    assert "http" not in menu
    assert (DOCS / "assets" / "iframe-worker.js").stat().st_size


def test_every_file_that_the_docs_name_is_there() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:src|tests|docs|tools)/[\w./-]+)`", page.read_text("utf-8")):
            assert (ROOT / name).exists(), f"{name_of(page)} names {name}"


GROUPS = {
    f"tacit.{kind}"
    for kind in ("methods", "detectors", "attacks", "corpora", "mechanisms", "models", "optimizers")
}


def test_every_module_that_the_docs_name_is_there() -> None:
    """`tacit.room.module.name` in a page is a module, and a name that stands in it."""
    for page in PAGES:
        for dotted in re.findall(r"`(tacit(?:\.\w+)+)", page.read_text("utf-8")):
            if dotted in GROUPS:  # an entry point
                continue
            place, names = ROOT / "src" / "tacit", dotted.split(".")[1:]
            while names and ((place / names[0]).is_dir() or (place / f"{names[0]}.py").is_file()):
                place /= names.pop(0)
            module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            text = module.read_text("utf-8")
            for name in names[:1]:
                assert re.search(rf"\b{name}\b", text), f"{name_of(page)} names {dotted}"


# Words of the place where this was written mean nothing to whoever reads it.
FOREIGN = re.compile(
    r"/work\b|\bshared/|/tmp/\w+\.md|\bissues? ?#?\d|\B#\d+\b(?=.*\b(?:issue|fix(?:es)?)\b)"
    r"|\b(?:this|last|next|previous|earlier|another|later) sessions?\b",
    re.IGNORECASE,
)
SOURCES = [
    path
    for folder in ("docs", "src", "tools", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".txt", ".jinja", ".html", ".yml"} and path != Path(__file__)
]


def test_the_project_speaks_of_itself_alone() -> None:
    extra = [
        ROOT / name for name in ("Makefile", "pyproject.toml", "constraints.txt", "mkdocs.yml")
    ] + FRONT
    found = [
        f"{path.relative_to(ROOT)}, line {number}"
        for path in [*SOURCES, *extra]
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert found == []


def test_the_advice_on_choosing_is_the_advice_that_plans_give() -> None:
    page = (DOCS / "explanations" / "guarantees.md").read_text(encoding="utf-8")
    section = page.split("### 1.5 Choosing epsilon and delta\n")[1].split("\n#")[0]
    assert CHOOSING in " ".join(section.split())
    header, rows = choosing(1e-5)
    shown = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    assert shown == [header, *rows]


def test_the_list_of_rooms_names_what_is_there() -> None:
    """Every module of the rooms that carry a promise, and nothing that is gone."""
    page = (DOCS / "explanations" / "architecture.md").read_text(encoding="utf-8")
    rooms = page.split("## Rooms")[1].split("## Who may import whom")[0]
    source = ROOT / "src" / "tacit"
    there = {path.stem for path in source.rglob("*.py")}
    assert set(re.findall(r"\b([a-z_]+)\.py\b", rooms)) - there == set()
    promising = {path.stem for path in (source / "privacy").glob("*.py")} - {"__init__"}
    assert {name for name in promising if not re.search(rf"\b{name}\b", rooms)} == set()


def test_every_pitfall_names_the_test_that_shows_what_is_done_about_it() -> None:
    """A row of the pitfalls without a test that exists is a protection that may not."""
    rows = [
        line.strip().strip("|").split("|")
        for line in (DOCS / "explanations" / "pitfalls.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith(("| pitfall", "|---"))
    ]
    assert len(rows) > 40
    for row in rows:
        assert len(row) == 5, row[0]
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[4])
        assert named, f"no test is named for: {row[0]}"
        for file, name in named:
            source = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {name}\(", source, re.MULTILINE), f"{file}::{name}"
