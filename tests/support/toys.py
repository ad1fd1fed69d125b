"""Plug-ins as a third party would install them: one file, and the entry point that names it."""

import os
from pathlib import Path

METHOD = '''"""Toy: DP-SGD in which a drawn user gives only the first of its records."""

from tacit.training.data.training_data import batches
from tacit.training.dp.gradients import ClippedSums
from tacit.training.methods.dp_sgd import PlannedSums
from tacit.training.settings import MethodSettings


class FirstRecord(PlannedSums[MethodSettings]):
    """Each drawn user's first record, clipped; sampling, noise and ledger are the house's."""

    name = "first-record"
    title = "First records only"
    summary = "DP-SGD on the first record of each drawn user; the plan protects users"
    protects = ("users",)

    def totals(self, inputs, meter):
        plan, data, sums = inputs.need_plan(), inputs.training_data, ClippedSums(inputs.model)

        def total(step, drawn):
            units = [data.rows_of_user[user][:1] for user in drawn]
            parts = batches(data.examples, units, inputs.run.token_budget)
            return sums.users(meter, parts, clip_norm=plan.clip_norm, units=len(units))

        return total


FIRST_RECORD = FirstRecord()
'''


def install(folder: Path, group: str, name: str, attribute: str, source: str) -> Path:
    """Write a plug-in as `pip install` would leave it; give the folder for the PYTHONPATH."""
    module = f"toy_{name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{attribute}\n")
    return folder


def path_with(folder: Path) -> str:
    """The PYTHONPATH with a folder in front."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
