"""Where training is, on a terminal, in a notebook or in a log."""

import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


class Live:
    """A line that says where training is; what is marked "not private" must stay inside."""

    def __init__(self, console: Console, name: str = "") -> None:
        """Show it on a console, after a name where several runs have one each."""
        self._console = console
        self._name = f"{name}: " if name else ""

    def __enter__(self) -> Any:
        self._said = 0.0
        self._renews = self._console.is_terminal or self._console.is_jupyter
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
        )
        self._bars = Progress(
            *columns, console=self._console, transient=False, disable=not self._renews
        )
        self._bars.start()
        self._tasks: dict[str, Any] = {}
        return self._tell

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _tell(self, at: Any) -> None:
        from tacit.training.evaluation.verdicts import so_far

        if at.phase not in self._tasks:
            self._tasks[at.phase] = self._bars.add_task(
                self._name + at.phase, total=at.steps, said=""
            )
        said = f"not private: loss {at.stats.loss:.3f}, "
        if at.uniform is not None or at.began is not None:
            said += so_far(at.stats.loss, at.began, at.uniform) + ", "
        said += f"drawn {at.stats.units}"
        said = "records" if at.phase == "features" else said
        if at.stats.units and (at.stats.clipped or at.spent):
            said += f", clipped {at.stats.clipped / at.stats.units:.0%}"
        if at.stats.not_finite:
            said += f", left out {at.stats.not_finite} (not finite)"
        if at.spent:
            said = f"[bold]{at.spent}[/bold] · {said}"
        self._bars.update(self._tasks[at.phase], completed=at.step, said=said)
        # In a log there is no line to renew: say it now and then.
        if not self._renews and (time.monotonic() - self._said > 30 or at.step == at.steps):
            self._said = time.monotonic()
            self._console.print(
                f"{self._name}{at.phase} {at.step}/{at.steps} {said}", soft_wrap=True
            )
