"""Run the notebooks and write them with their outputs: notebooks/NN_name.py -> notebooks/NN_name.ipynb.

The .py file is the source (py:percent, read by jupytext). Figures become PNG pictures, which a repository's
page shows without running anything; kaleido draws them with Chrome or Chromium. Needs the extra `notebooks`,
kaleido and, from 08 on, PyTorch: `make notebooks` installs them. Names on the command line build only the
notebooks they match.
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

import jupytext
import kaleido
import nbformat
import plotly.io
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
FIGURE, WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"
WIDTH = 960  # pixels: as wide as the page that shows it
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def build(source: Path) -> Path:
    """Run one notebook and write it; CellExecutionError if a cell fails."""
    notebook = jupytext.read(source)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    notebook.metadata = NotebookNode(kernelspec=KERNEL, language_info={"name": "python"})
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i:02}"  # jupytext draws ids at random
        cell.metadata = NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = [still(output) for output in cell.outputs if not is_progress(output)]
    target = source.with_suffix(".ipynb")
    nbformat.write(notebook, target)
    return target


def is_progress(output: NotebookNode) -> bool:
    """Say whether an output is a progress bar."""
    return WIDGET in output.get("data", {}) or output.get("name") == "stderr"


def still(output: NotebookNode) -> NotebookNode:
    """Return an output with its figure, if it is one, as a picture."""
    if FIGURE in output.get("data", {}):
        output.data = NotebookNode({"image/png": picture(output.data[FIGURE])})
        output.metadata = NotebookNode()
    return output


def picture(figure: NotebookNode) -> str:
    """Draw a figure as it left the kernel, as base64 PNG."""
    shown = {"data": figure["data"], "layout": figure["layout"]}
    png = plotly.io.to_image(shown, format="png", width=WIDTH, validate=False)
    return base64.b64encode(png).decode("ascii")


def main() -> None:
    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"
    wanted = sys.argv[1:] or [""]
    kaleido.start_sync_server(silence_warnings=True)  # one browser for all pictures
    try:
        for source in sorted(FOLDER.glob("[0-9][0-9]_*.py")):
            if any(name in source.stem for name in wanted):
                target = build(source)
                print(f"{target.name}: {target.stat().st_size / 1024:,.0f} kB")
    finally:
        kaleido.stop_sync_server(silence_warnings=True)


if __name__ == "__main__":
    main()
