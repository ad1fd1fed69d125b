"""`tacit export`: a trained model in the layout of other programs."""

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.common import err
from tacit.cli.options import RunFolder
from tacit.errors import UsageError
from tacit.files import refuse_overwrite

_Out = Annotated[Path, typer.Option("-o", "--out", help="A file that ends in .gguf, or a folder.")]
_Adapter = Annotated[
    bool, typer.Option("--adapter", help="The adapters alone, as peft loads them; into a folder.")
]
_Overwrite = Annotated[bool, typer.Option(help="Replace a file that is there.")]


def export(
    run: RunFolder, out: _Out, adapter: _Adapter = False, overwrite: _Overwrite = False
) -> None:
    """Write a run's model as a GGUF file, or its adapters alone.

    The run's folder holds merged weights as safetensors already. It costs nothing, and the
    certificate, which names the files of the run, does not name these.

    Examples: `tacit export RUN -o model.gguf` · `tacit export RUN --adapter -o ADAPTER`
    """
    if adapter == (out.suffix == ".gguf"):
        raise UsageError("Give a file that ends in .gguf, or --adapter and a folder.")
    refuse_overwrite(out, overwrite=overwrite or adapter)
    from tacit.training.phases.exporting import export_adapter, export_gguf

    err.print(f"wrote {export_adapter(run, out) if adapter else export_gguf(run, out)}")
