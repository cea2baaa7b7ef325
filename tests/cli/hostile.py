"""The folder in which hostile calls run: small data, a run, files of every wrong kind, bad models."""

import json
import random
from pathlib import Path

FEATURES = [
    {"kind": "dense", "name": "price"},
    {"kind": "sparse", "name": "user"},
    {"kind": "sparse", "name": "item"},
]
SCHEMA = {"features": FEATURES, "delimiter": ","}

MODEL = """
import torch
import hotrows
from hotrows.models import Model

class M(Model):
    def __init__(self, schema):
        super().__init__()
        {init}
        self.tables = (hotrows.Table("user", {rows}, 4, features=({feature!r},)),)
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, vectors, dense):
        {forward}
"""


def model(init="pass", rows="schema.rows_of('user')", feature="user", forward="return dense[:, 0]"):
    return MODEL.format(init=init, rows=rows, feature=feature, forward=forward)


FILES = {
    # models
    "syntax.py": "def (",
    "raises.py": "raise RuntimeError('of its own')",
    "imports.py": "import nothing_like_it",
    "plain.py": "class M: pass",
    "init.py": model(init="{}['x']"),
    "feature.py": model(feature="nobody"),
    "rows.py": model(rows="-1"),
    "text.py": model(rows="'9'"),
    "forward.py": model(forward="raise IndexError('of its own')"),
    "shape.py": model(forward="return torch.nn.Linear(7, 1)(dense)"),
    "logits.py": model(forward="return self.linear(dense)"),
    "none.py": model(forward="return None"),
    "words.py": model(forward="return 'logits'"),
    "diverges.py": model(forward="return self.linear(dense)[:, 0] * float('nan')"),
    # schemas
    "s_syntax.py": "schema = (",
    "s_none.py": "schema = None",
    "s_raises.py": "1 / 0",
    "s_bad.py": "from hotrows import Dense\nDense('price', transform='x')",
    # JSON
    "deep.json": "[" * 100_000,
    "nested.json": '{"features":' * 100_000 + "1" + "}" * 100_000,
    "null.json": "null",
    "list.json": "[]",
    "digits.json": '{"batch_size": ' + "9" * 5000 + "}",
    "unknown.json": '{"batchsize": 3}',
    "typed.json": '{"batch_size": "many"}',
    "optimizer.json": '{"row_optimizer": {"kind": "adagrad", "rate": 1}}',
    "number.json": '{"row_optimizer": 3}',
    "folder/x": "x",
    "file": "x\n",
    "empty.csv": "",
    "header.csv": "label,price,user,item\n",
}


def make(folder: Path, run) -> None:
    """Fills the folder, in which the command line is called by `run`."""
    choose = random.Random(0)

    def rows(label) -> str:
        lines = (
            f"{label(i)},{choose.random():.3f},u{choose.randrange(9)},i{choose.randrange(5)}"
            for i in range(120)
        )
        return "label,price,user,item\n" + "\n".join(lines) + "\n"

    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    (folder / "empty").mkdir()
    (folder / "bytes.json").write_bytes(b"\xff\xfe\0")
    (folder / "s.json").write_text(json.dumps(SCHEMA))
    sized = [{**feature, "rows": 9} if feature["kind"] == "sparse" else feature for feature in FEATURES]
    (folder / "rows.json").write_text(json.dumps({**SCHEMA, "features": sized}))
    (folder / "raw.csv").write_text(rows(lambda i: i % 3 // 2))
    (folder / "ones.csv").write_text(rows(lambda _: 1))
    (folder / "early.csv").write_text(rows(lambda i: int(i < 40)))
    (folder / "more.json").write_text(json.dumps({**SCHEMA, "name": "other"}))
    run("prepare raw.csv --schema s.json --out enc --split position:0.6,0.2,0.2")
    run("prepare ones.csv --schema s.json --out ones --split position:0.6,0.2,0.2")
    run("prepare early.csv --schema s.json --out early --split position:0.6,0.2,0.2")
    run("train enc --model lr --batch-size 32 --linear-paths plain --run run")
