"""No JSON of ours holds NaN or Infinity: other programs refuse such a file."""

import ast
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import tacit
from tacit.attacks.attack import Scores, read_scores, read_series, write_scores, write_series
from tacit.privacy.accounting.price import Price
from tacit.privacy.accounting.price_cache import recall, remember
from tacit.privacy.events import NotPrivate
from tacit.privacy.ledger import Releases
from tacit.saved_json import spelled, write_fields
from tacit.training.evaluation.scoring import keep_scores

SOURCES = sorted(Path(tacit.__file__).parent.rglob("*.py"))


def strict(text: str) -> object:
    """What a JSON file says to a reader who knows no NaN."""

    def refuse(word: str) -> object:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def writers(tree: ast.AST) -> Iterator[ast.expr]:
    """Every mention of json.dump or json.dumps, called or passed on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("dump", "dumps"):
            if isinstance(node.value, ast.Name) and node.value.id == "json":
                yield node
        elif isinstance(node, ast.ImportFrom) and node.module == "json":
            assert not {name.name for name in node.names} & {"dump", "dumps"}, "import json"


def refuses(call: ast.Call) -> bool:
    return any(
        k.arg == "allow_nan" and isinstance(k.value, ast.Constant) and k.value.value is False
        for k in call.keywords
    )


def test_whatever_writes_json_refuses_what_json_has_not() -> None:
    found, lax = 0, []
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        strictly = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call) and refuses(n)}
        for node in writers(tree):
            found += 1
            if id(node) not in strictly:
                lax.append(f"{path.name}:{node.lineno}")
    assert found > 40
    assert not lax, f"json.dumps(..., allow_nan=False), figures through fields.spelled: {lax}"


BEYOND = {"good": 1.5, "none": math.nan, "most": math.inf, "least": -math.inf}


def test_words_stand_for_what_is_no_number() -> None:
    said = spelled({"a": [BEYOND, (math.inf,)], "b": None, "c": True, "d": 10**400})
    assert said["a"][0] == {"good": 1.5, "none": None, "most": "infinity", "least": "-infinity"}
    assert said["a"][1] == ["infinity"]
    assert (said["b"], said["c"], said["d"]) == (None, True, 10**400)
    assert float(said["a"][0]["most"]) == math.inf  # readers need no table


def test_a_saved_value_is_refused_rather_than_half_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_fields(tmp_path / "x.json", {"format": "x", "values": [math.nan]})
    assert not list(tmp_path.iterdir())


def scores() -> Scores:
    """Scores in which everything that can be is no number."""
    return Scores(
        "exposure",
        dict(BEYOND),
        {"good": (-math.inf, math.nan)},
        [{"repetitions": 1, "mean_bits": math.inf, "low": math.nan}],
        {"by repetition": [(0.0, math.inf), (1.0, math.nan)]},
        [],
        math.inf,
    )


def test_scores_of_attacks_are_json_whatever_they_are(tmp_path: Path) -> None:
    path, series = tmp_path / "attacks.json", tmp_path / "series.json"
    for _ in range(2):  # what was read can be written again
        write_scores(path, [scores()])
        write_series(series, {3: {"exposure": scores()}})
    strict(path.read_text())
    strict(series.read_text())
    again = read_scores(path)[0]
    assert again.as_dict() == scores().as_dict()
    assert read_series(series)[3]["exposure"].as_dict() == scores().as_dict()


def test_scores_of_before_are_read_and_put_right(tmp_path: Path) -> None:
    """Files that older versions wrote hold Infinity in their curves."""
    path = tmp_path / "attacks.json"
    write_scores(path, [scores()])
    old = path.read_text().replace('"by repetition":[[0.0,null]', '"by repetition":[[0.0,Infinity]')
    assert "Infinity" in old
    path.write_text(old)
    write_scores(path, [Scores("tab", {"x": 1.0})])
    strict(path.read_text())


def test_scores_of_a_model_that_ran_away_are_json(tmp_path: Path) -> None:
    keep_scores(tmp_path, "test", {"perplexity": math.inf, "accuracy": math.nan})
    keep_scores(tmp_path, "valid", {"perplexity": 3.0})
    assert strict((tmp_path / "metrics.json").read_text()) == {
        "test": {"perplexity": "infinity", "accuracy": None},
        "valid": {"perplexity": 3.0},
    }


def test_a_price_without_end_is_kept_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    asked = {"unit": "users", "delta": 1e-5}
    price = Price("users", math.inf, 1e-5, 0.0, "pld", None, (("pld", math.inf),))
    releases: Releases = {NotPrivate(what="x"): 1}
    remember(asked, releases, price)
    (file,) = [path for path in tmp_path.rglob("*.json")]
    strict(file.read_text())
    assert recall(asked, releases) == price
