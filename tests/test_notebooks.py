"""The notebooks of the handbook run, and print what they show. One needs a GPU: tests/validate/test_free_gpu.py.

After a change of their output: `jupyter nbconvert --to notebook --execute --inplace docs/notebooks/*.ipynb`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import warm_process

pytestmark = pytest.mark.ci  # many seconds

DOCS = Path(__file__).parent.parent / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
EXECUTED = [notebook for notebook in NOTEBOOKS if notebook.stem != "free-gpu"]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no descriptors of processes")
@pytest.mark.parametrize("notebook", EXECUTED, ids=lambda path: path.stem)
def test_notebook_prints_what_it_shows(notebook: Path, tmp_path: Path, warm: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_bytes())["cells"] if cell["cell_type"] == "code"]
    shown = [
        "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")
        for cell in cells
    ]
    program = ["import matplotlib", "matplotlib.use('agg')"]
    program += ["".join(cell["source"]).replace("plt.show()", "plt.close()") for cell in cells]
    assert warm_process.run_code("\n".join(program), tmp_path, warm) == "".join(shown)


def test_the_handbook_lists_every_notebook() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert (len(NOTEBOOKS), len(EXECUTED)) == (6, 5)
    assert all(f"](notebooks/{notebook.name})" in index for notebook in NOTEBOOKS)
