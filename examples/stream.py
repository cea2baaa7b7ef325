"""Trains a model on a stream of clicks, while they are written: `python examples/stream.py`.

A shop writes its clicks into a folder, a file a minute. A first model is trained on yesterday's; then
every click is scored by the model of that moment, trained on once, and the quality of each window is
printed. Tastes change half-way: watch the AUC fall, and come back as the model learns.
"""

import json
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from hotrows import Callback, Label, Schema, Sparse, TrainConfig, Trainer, prepare
from hotrows.data.streams import StreamConfig

SCHEMA = Schema((Sparse("user"), Sparse("item")), label=Label("click"))


def clicks(number: int, seed: int, reverse: bool = False) -> list[dict]:
    """Users like items of their own kind; or, reversed, of the other kinds."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(100, size=number), rng.integers(50, size=number)
    likes = ((users % 5 == items % 5) ^ reverse) * 3.0 - 1.5
    clicked = rng.random(number) < 1 / (1 + np.exp(-likes))
    names = ("user", "item", "click")
    rows = zip(users.tolist(), items.tolist(), clicked.astype(int).tolist(), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


def shop(folder: Path) -> None:
    """Writes ten files of clicks, each aside and then renamed into place."""
    for minute in range(10):
        lines = (json.dumps(click) + "\n" for click in clicks(4_000, minute, reverse=minute >= 5))
        (folder / f".{minute:03}.jsonl").write_text("".join(lines))
        (folder / f".{minute:03}.jsonl").rename(folder / f"{minute:03}.jsonl")
        time.sleep(0.2)


class Print(Callback):
    def on_evaluation_end(self, trainer, metrics) -> None:
        events = trainer.state.stream.events
        print(f"{events:6,} clicks: AUC {metrics.auc:.3f} of the last {metrics.samples:,}")


def main(folder: Path) -> None:
    first = clicks(20_000, seed=99)
    yesterday = {name: [click[name] for click in first] for name in ("user", "item", "click")}
    data = prepare(yesterday, SCHEMA, folder / "enc")
    Trainer(data, TrainConfig(model="fm", epochs=2, batch_size=256), folder / "base").fit(verbose=False)

    (folder / "clicks").mkdir()
    threading.Thread(target=shop, args=(folder / "clicks",)).start()
    config = TrainConfig(model="fm", start_from=str(folder / "base"), batch_size=256)
    stream = StreamConfig(max_wait=0.1, window=4_000, stop_when_idle=1.0)
    trainer = Trainer(data, config, folder / "live")
    result = trainer.fit_stream(f"folder:{folder / 'clicks'}", stream, callbacks=[Print()], verbose=False)
    print(f"test AUC {result.validation.auc:.3f} of clicks that the model had not seen")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
