"""From a log of clicks to served scores, and new clicks into them: `python examples/click_to_score.py`.

A model learns a shop's log and is published. A server scores an item for a user, over HTTP, while
training goes on with new clicks: nobody liked item 7 so far, then everybody does, and its score follows.
Needs `pip install '.[export,serving]'`; takes about half a minute.
"""

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

from hotrows import Publisher, Schema, Sparse, TrainConfig, Trainer, prepare
from hotrows.data.streams import StreamConfig

SCHEMA = Schema((Sparse("user"), Sparse("item"), Sparse("hour")), label="click")
ITEM = 7


def clicks(number: int, seed: int, chance: float) -> dict[str, list[int]]:
    """Views of items, every third of them of item 7, which is clicked by this chance."""
    rng = np.random.default_rng(seed)
    item = np.where(rng.random(number) < 1 / 3, ITEM, rng.integers(50, size=number))
    clicked = rng.random(number) < np.where(item == ITEM, chance, 0.2 + item % 5 / 10)
    user, hour = rng.integers(100, size=number), rng.integers(24, size=number)
    columns = {"user": user, "item": item, "hour": hour, "click": clicked.astype(int)}
    return {name: column.tolist() for name, column in columns.items()}


def score(port: int) -> tuple[float, str]:
    """The score of the item for user 3 in the evening, and the version of the model that says so."""
    body = json.dumps({"shared": {"user": 3, "hour": 20}, "rows": [{"item": ITEM}]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/score", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["scores"][0], answer.headers["X-Hotrows-Version"]


def shop(folder: Path, trainer: Trainer) -> None:
    """Serves what is published, and writes clicks for six seconds, in which tastes change; then ends."""
    try:
        serve_and_sell(folder)
    finally:
        trainer.stop()


def serve_and_sell(folder: Path) -> None:
    while not list((folder / "published").glob("base-*[0-9]")):
        time.sleep(0.1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hotrows", "serve", "--follow", str(folder / "published")]
    with subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL) as server:
        while True:
            try:
                print(f"first model: item {ITEM} scores {score(port)[0]:.2f}")
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        for second in range(6):
            new = clicks(2_000, second, chance=0.05 if second < 2 else 0.95)
            rows = [dict(zip(new, row, strict=True)) for row in zip(*new.values(), strict=True)]
            (folder / "clicks" / f".{second}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
            (folder / "clicks" / f".{second}.jsonl").rename(folder / "clicks" / f"{second}.jsonl")
            time.sleep(1)
            probability, version = score(port)
            print(f"second {second + 1}: item {ITEM} scores {probability:.2f}, by version {version}")
        server.terminate()


def main(folder: Path) -> None:
    data = prepare(clicks(20_000, seed=99, chance=0.05), SCHEMA, folder / "enc")
    config = TrainConfig(model="deepfm", model_options={"hidden": [32]}, epochs=1, batch_size=256)
    Trainer(data, config, folder / "base").fit(verbose=False)

    (folder / "clicks").mkdir()
    config = TrainConfig(
        model="deepfm", model_options={"hidden": [32]}, start_from=str(folder / "base"), batch_size=256
    )
    trainer = Trainer(data, config, folder / "live")
    selling = threading.Thread(target=shop, args=(folder, trainer))
    selling.start()
    stream, publisher = StreamConfig(max_wait=0.1), Publisher(folder / "published", every="0.2s")
    trainer.fit_stream(f"folder:{folder / 'clicks'}", stream, callbacks=[publisher], verbose=False)
    selling.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
