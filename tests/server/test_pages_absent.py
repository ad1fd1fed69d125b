"""The API alone, and a machine without the component library."""

from pathlib import Path

import httpx

from support.forking import run_python
from support.living import Living


def test_without_pages_there_is_the_api_alone(tmp_path: Path) -> None:
    living = Living(tmp_path / "server")
    try:
        answer = httpx.get(living.address + "/", trust_env=False)
        assert (answer.status_code, answer.json()["message"]) == (404, "Not Found")
        assert not living.link
    finally:
        living.stop()
    code = "import sys, tacit.server.serving; sys.exit('nicegui' in sys.modules)"
    assert run_python("-c", code).returncode == 0


def test_a_missing_library_is_one_sentence(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['nicegui'] = None; from tacit.cli import main; "
        "sys.argv = ['tacit', 'serve', '--folder', 'server', '--port', '0']; main()"
    )
    done = run_python("-c", code, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().count("--no-pages") == 1
    assert "Traceback" not in done.stderr
