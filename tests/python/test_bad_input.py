"""What goes wrong in a notebook: one sentence with the way out, and no traceback of ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tacit
from tacit.torch import make_private

t: Any = tacit  # whose types would refuse what is tried here


def mail() -> tacit.Corpus:
    rows = ({"id": str(n), "user": f"u{n}", "text": "hello there"} for n in range(4))
    return tacit.Corpus.from_records(rows)


def private(**changes: Any) -> Any:
    model = nn.Linear(2, 2)
    given: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1),
        "plan": {"protect": "users", "epsilon": 4, "users": 20, "user_rate": 0.2, "steps": 2},
        "owners": ["ann", "bob"],
        "ledger": "RUN/ledger.jsonl",
    } | changes
    return make_private(
        given.pop("model"), given.pop("optimizer"), given.pop("plan"), **given
    )  # fmt: skip


def planned(**changes: Any) -> Any:
    return t.plan(**{"protect": "users", "epsilon": 4, "users": 100} | changes)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tacit.Corpus.from_pandas([1, 2], text="Body"), "A list has no columns"),
        (lambda: t.detect(object()), "A object is no corpus; make one with tacit.Corpus"),
        (lambda: t.train(3, method="plain", folder="RUN"), "A int is no corpus"),
        (lambda: t.owners(mail(), "found"), r"give what tacit\.detect"),
        (lambda: planned(epsilon="four"), "epsilon='four' is not a number"),
        (lambda: planned(users=10.5), "fractional part"),
        (lambda: tacit.compare([], "page.html"), "nothing to compare"),
        (lambda: tacit.sanitize(mail(), "santexts"), "Did you mean 'santext"),
        (lambda: private(model=abs), "is no torch module"),
        (lambda: private(optimizer=None), "A NoneType is no torch optimizer"),
        (lambda: private(plan=None), "A NoneType is no plan"),
        (lambda: private(owners=5), "owners is a int"),
    ],
)
def test_one_sentence(
    call: Callable[[], Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tacit.TacitError, match=said) as refused:
        call()
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_files_do_as_well(tmp_path: Path) -> None:
    """Whatever takes a corpus takes the path of one."""
    tacit.write(mail(), tmp_path / "mail.parquet")
    found = tacit.detect(tmp_path / "mail.parquet")
    assert repr(found) == "Detection(0 mentions in 4 records)"
    assert len(tacit.owners(str(tmp_path / "mail.parquet"), found).users) == 4
    done = tacit.sanitize(tmp_path / "mail.parquet", "santext", epsilon_per_distance=1.0)
    assert len(done) == 4
