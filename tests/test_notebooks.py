"""The notebooks of examples/notebooks run, cell by cell; the first one on few rows without --all."""

import importlib.util
import os
import re
from pathlib import Path

import pytest

import hotrows

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.py"))


def test_there_are_four_and_the_page_names_them():
    page = (FOLDER / "README.md").read_text()
    assert len(NAMES) == 4 and all(f"[{name}]({name})" in page for name in NAMES)


@pytest.mark.usefixtures("one_thread", "no_pictures")
def test_the_first_one_runs_on_few_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = re.sub(r"ROWS = [\d_]+", "ROWS = 2_000", (FOLDER / "first_model.py").read_text())
    cells = source.split("\n# %%")
    assert len(cells) > 10
    names = {"__name__": "notebook"}
    for cell in cells:
        exec(compile(cell.partition("\n")[2], "first_model.py", "exec"), names)
    assert names["probabilities"][0] > names["probabilities"][1] and len(names["probabilities"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_whole_in_a_notebook(name, tmp_path):
    jupytext, nbclient = pytest.importorskip("jupytext"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    if name == "accelerate.py" and not importlib.util.find_spec("torch_rechub"):
        pytest.skip("needs torch-rechub")
    notebook = jupytext.read(FOLDER / name)
    root = str(Path(hotrows.__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [output for output in outputs if "text/html" in output.get("data", {})]
    assert shown, "no value showed itself as a table"
    jupytext.write(notebook, tmp_path / f"{name}.ipynb")
    errors = [output for output in outputs if output.output_type == "error"]
    assert not errors
