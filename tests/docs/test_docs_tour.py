"""The notebook runs from top to bottom, and is stored without outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient", reason="nbclient, of the extra 'dev', is not installed")
pytest.importorskip("ipykernel", reason="ipykernel, of the extra 'dev', is not installed")

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "tour.ipynb"
# In a separate process, which ends jupyter's event loops and sockets. The kernel uses file-system
# sockets, since any user of the machine could connect to ports.
RUN = """
import sys
import nbclient, nbformat
from jupyter_client.manager import AsyncKernelManager

notebook = nbformat.read(sys.argv[1], as_version=4)
manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip="kernel")
nbclient.NotebookClient(notebook, timeout=300, km=manager).execute()
nbformat.write(notebook, "run.ipynb")
"""


def _read_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_it_is_stored_without_outputs() -> None:
    cells = _read_cells(NOTEBOOK)
    assert len(cells) >= 8
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.slow
def test_it_runs(tmp_path: Path) -> None:
    folders = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")
    places = {name: str(tmp_path / name.lower()) for name in folders}  # not in the home folder
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-c", RUN, NOTEBOOK],
        cwd=tmp_path,
        env={**os.environ, **places, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stderr
    outputs = [output for cell in _read_cells(tmp_path / "run.ipynb") for output in cell["outputs"]]
    printed = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")
    assert "matches, the best of them" in printed
    assert "t = [-1." in printed  # the second camera stood to the right of the first
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4
