"""The notebooks of examples/notebooks run, cell by cell; the first one on few rows without --all."""

import importlib.util
import json
import os
import re
from pathlib import Path

import pytest
from docs.notebooks import MOST_BYTES, notebook_of

import hotrows

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.py"))


def test_there_are_four_and_the_page_names_them():
    page = (FOLDER / "README.md").read_text()
    assert len(NAMES) == 4 and all(f"[{name}]({name})" in page for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_the_cells_of_its_script_and_their_outputs(name):
    """python docs/notebooks.py NAME writes it again."""
    path = (FOLDER / name).with_suffix(".ipynb")
    text = path.read_text()
    notebook, plain = json.loads(text), notebook_of((FOLDER / name).read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["execution_count"] and all(o["output_type"] != "error" for o in cell["outputs"])
            cell |= {"execution_count": None, "outputs": []}
    assert notebook == plain
    assert len(text.encode()) <= MOST_BYTES
    assert not re.search(r"/tmp/|/home/|/root/|/work/|site-packages", text)
    assert text.count('"text/html"') and text.count('"text/plain"')
    if importlib.util.find_spec("nbformat"):
        import nbformat

        nbformat.validate(nbformat.reads(text, 4))


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
