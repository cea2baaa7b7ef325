"""Runs the notebooks of examples/notebooks, and writes each beside its script, with its outputs.

    python docs/notebooks.py [NAME ..]        # needs nbclient and ipykernel: pip install '.[notebooks]'

A script has cells between `# %%` lines. The notebook has the same cells, and nothing of the machine: no
path, no time of execution.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "notebooks"
MOST_BYTES = 100_000
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def cells_of(script: str) -> list[tuple[str, str]]:
    """The kind and the source of each cell of a script."""
    cells = []
    for part in script.split("\n# %%")[1:]:
        title, _, source = part.partition("\n")
        source = source.strip("\n")
        if "[markdown]" in title:
            lines = (line.removeprefix("#").removeprefix(" ") for line in source.splitlines())
            cells.append(("markdown", "\n".join(lines)))
        else:
            cells.append(("code", source))
    return cells


def notebook_of(script: str) -> dict:
    """A notebook of the cells, as nbformat 4.5 has it, without outputs."""
    cells = []
    for number, (kind, source) in enumerate(cells_of(script)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        of_code = {"execution_count": None, "outputs": []} if kind == "code" else {}
        cells.append({**cell, **of_code, "source": source.splitlines(keepends=True)})
    return {"cells": cells, "metadata": _METADATA, "nbformat": 4, "nbformat_minor": 5}


def run(script: str) -> dict:
    """The notebook of a script with the outputs of its cells, run in an empty folder."""
    import nbclient
    import nbformat

    with tempfile.TemporaryDirectory() as folder:
        ran = nbformat.from_dict({**notebook_of(script)})
        for cell in ran.cells:
            cell.source = "".join(cell.source)
        nbclient.NotebookClient(
            ran, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
        text = json.dumps(ran.cells).replace(f"{folder}/", "").replace(folder, ".")
    done = notebook_of(script)
    for cell, of_run in zip(done["cells"], json.loads(text), strict=True):
        if cell["cell_type"] == "code":
            cell["execution_count"] = of_run["execution_count"]
            cell["outputs"] = [output for output in of_run["outputs"] if not _is_progress(output)]
    return done


def _is_progress(output: dict) -> bool:
    return output["output_type"] == "stream" and output["name"] == "stderr"


def main(names: list[str]) -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    for script in sorted(FOLDER.glob("*.py")):
        if names and script.name not in names:
            continue
        text = json.dumps(run(script.read_text()), indent=1, ensure_ascii=False) + "\n"
        size, path = len(text.encode()), script.with_suffix(".ipynb")
        if size > MOST_BYTES:
            sys.exit(f"{path.name} has {size:,} bytes, more than {MOST_BYTES:,}: show less")
        path.write_text(text)
        print(f"{path.relative_to(ROOT)}: {size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
