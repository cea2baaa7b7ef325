"""What does a run at a URL cost, and what does it lose when machines are taken away?

    python -m benchmarks.machines [--parts data,shares] [--rows N] [--rounds R] [--faults N]

Two ranks with disks apart and a bucket: S3 by moto where it is installed (PYTHONPATH), else a folder
behind `file://`; moto, the ranks and their copies share this machine's cores. Measured:

    upload      samples/s with the run at the URL, next to a run in a shared folder, in turn; a checkpoint
                every ten seconds or so
    resume      seconds from the start of processes on empty disks to the first step after the checkpoint;
                of these, the seconds to import and to meet, which a run that begins has too; bytes that
                each rank fetched, next to the bytes of its own records: what is above 1 are rows that
                increments have again. They are scattered: to leave out ranges of 512 rows and more would
                save nothing for ids that are drawn evenly, and 0.03 of 1.33 for those of Zipf's law
    data        samples/s and seconds of a job whose data is at the URL, on empty disks, next to one that
                reads it in a folder, in turn
    notices     SIGTERM to one rank, with a notice of 25 s, while storage answers 503, stalls, cuts bodies
                or connections, in turn: how many jobs ended in time (of S3 by moto alone)
    shares      seconds of a step with shares by speed, next to equal ones, where the first rank takes
                twice as long for a sample as the second (it sleeps)
    preempted   SIGTERM with a notice, and SIGKILL, at seeded steps: steps made twice, checkpoints lost
    faults      calls to storage that failed by a seeded plan: files lost, files with other bytes

Extrapolated are: the seconds to resume with 10 GB of rows, fetched by these ranks on these cores; and
goodput, at one preemption an hour, the part of an hour that trains what is kept, with 10 GB.
"""

import argparse
import dataclasses
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

QUESTION = "What does a run at a URL cost, and what does it lose when machines are taken away?"
RANKS, BATCH_SIZE, FEATURES, VALUES = 2, 2048, 6, 150_000
_ports = itertools.count(29_640)


def main() -> None:
    from benchmarks.harness import conditions, write

    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--parts", default="", help="such as upload,data (default: all)")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--preemptions", type=int, default=8)
    parser.add_argument("--notices", type=int, default=20)
    parser.add_argument("--faults", type=int, default=10_000)
    args = parser.parse_args()
    begun = os.getloadavg()
    with tempfile.TemporaryDirectory() as name, bucket(Path(name)) as (url, environment, proxy):
        os.environ.update(environment)
        folder = Path(name)
        make_data(folder, args.rows)
        parts = {
            "upload": lambda: upload(folder, url, args.rounds),
            "resume": lambda: resume(folder, url),
            "preempted": lambda: preempted(folder, url, args.preemptions),
            "faults": lambda: faults(folder, args.faults),
            "data": lambda: data(folder, url, args.rounds),
            "shares": lambda: unequal(folder),
            "notices": lambda: notices(folder, url, proxy, args.notices) if proxy else {},
        }
        result = {"storage": url.partition(":")[0]}
        for part in args.parts.split(",") if args.parts else parts:
            result |= parts[part]()
    if not args.parts:
        result["goodput_one_preemption_an_hour"] = round(goodput(result), 4)
    load = [round(value, 1) for value in (*begun, *os.getloadavg())]
    print(json.dumps(result, indent=2))
    name = "-".join(["machines", *filter(None, args.parts.split(","))])
    write(name, {"question": QUESTION, "conditions": conditions(1), "load": load, "result": result})


@contextmanager
def bucket(folder: Path):
    """The URL of a bucket, the environment variables it needs, and the proxy in front, if any."""
    try:
        import moto.server  # noqa: F401
        import s3fs  # noqa: F401
        from tests.machines.proxy import bucket as s3
    except ImportError:
        yield f"file://{folder}/bucket", {}, None
        return
    with s3() as (proxy, environment):
        yield "s3://bucket", environment, proxy


def make_data(folder: Path, rows: int, values: int = VALUES) -> None:
    import numpy as np

    from hotrows import Schema, Sparse, prepare

    random_ids = np.random.default_rng(0).integers(0, values, (FEATURES, rows))
    raw = {f"f{k}": [f"v{value}" for value in ids] for k, ids in enumerate(random_ids)}
    raw["label"] = (np.random.default_rng(1).random(rows) < 0.3).astype(int).tolist()
    schema = Schema(tuple(Sparse(f"f{k}", min_count=1) for k in range(FEATURES)), label="label")
    prepare(raw, schema, folder / "enc", split="position:0.98,0.01,0.01")


# ---- ranks, as processes


def start(folder: Path, run: str, disks: str, ranks: int = RANKS, **how) -> list[subprocess.Popen]:
    """Starts the ranks of a job, each with a disk of its own; how: see `work`."""
    port, started = str(next(_ports)), []
    for rank in range(ranks):
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(folder / f"{disks}-{rank}"),
        }
        fields = json.dumps({"data": str(folder / "enc"), "run": run, "started": time.time(), **how})
        command = [sys.executable, "-c", "from benchmarks.machines import work; work()", fields]
        options = {"stdout": subprocess.PIPE, "text": True, "env": {**os.environ, **environment}}
        started.append(subprocess.Popen(command, **options))
    return started


def ended(processes: list[subprocess.Popen]) -> list[dict]:
    """What each rank says in the end: the last line that it has printed."""
    texts = [process.communicate(timeout=600)[0] for process in processes]
    return [json.loads(text.splitlines()[-1]) if text.strip() else {} for text in texts]


def work() -> None:
    """A rank: trains, and prints what it has measured as JSON."""
    how = json.loads(sys.argv[1])
    from hotrows import Callback, TrainConfig, Trainer
    from hotrows.engine.distributed import machines, process_group
    from hotrows.runtime.remote.files import RemoteFiles
    from hotrows.train import Interrupted
    from hotrows.train.telling import pictures

    pictures.draw_run = lambda run: None
    fetched, get = {"bytes": 0}, RemoteFiles.get

    def counted(self, name, file, size=None):
        get(self, name, file, size)
        fetched["bytes"] += os.path.getsize(file) if name.endswith((".records", ".ids")) else 0

    RemoteFiles.get = counted
    said, ends = {}, []

    class Watch(Callback):
        def on_step_end(self, trainer, progress):
            step = trainer.state.step
            said.setdefault("first_step_after", time.time() - how["started"])
            said.setdefault("first_step", step)
            said["last_step"] = step
            ends.append(time.monotonic())
            if how.get("say"):
                print(step, flush=True)

    ranks = process_group.start(120)
    machines.compare(ranks)
    said["met_after"] = time.time() - how["started"]
    config = TrainConfig(
        model="deepfm",
        model_options={"dim": 16, "hidden": [64]},
        batch_size=BATCH_SIZE,
        seed=1,
        linear_paths="plain",
        sharding="rows",
        checkpoint_every=how.get("every", 25),
        evaluate_every=10**9,
        decay_patience=1000,  # the evaluation at the end of a job changes nothing
        stop_patience=1000,
        full_every=10,
        keep_last=2,
        epochs=how.get("epochs", 1),
        steps=how.get("steps"),
        notice=how.get("notice"),
    )
    config = dataclasses.replace(config, **how.get("settings", {}))
    trainer = Trainer(how["data"], config, how["run"], resume=how.get("resume", False), ranks=ranks)
    if how.get("slow"):
        seconds = how["slow"][ranks.rank]
        trainer.model.register_forward_pre_hook(lambda _, inputs: time.sleep(seconds * len(inputs[1])))
    own = sum(store.num_bytes for store in trainer.embedding.stores)
    said |= {"own_bytes": own, "fetched_bytes": fetched["bytes"]}
    try:
        said["samples_per_second"] = trainer.fit(verbose=False, callbacks=[Watch()]).samples_per_second
    except Interrupted:
        said["left"] = time.time()
    said["steps"] = [end - begin for begin, end in itertools.pairwise(ends)]
    print(json.dumps(said), flush=True)
    os._exit(0)


# ---- what is measured


def upload(folder: Path, url: str, rounds: int) -> dict:
    """The speed with the run at the URL and in a folder, in turn; and of a whole job, start to end."""
    speeds: dict[str, list[float]] = {"folder": [], "url": []}
    seconds: dict[str, list[float]] = {"folder": [], "url": []}
    for number in range(rounds):
        for place in ("folder", "url") if number % 2 == 0 else ("url", "folder"):
            run = f"{url}/speed-{number}" if place == "url" else str(folder / f"speed-{number}")
            begin = time.monotonic()
            how = {"epochs": 8, "every": 400}
            ranks = ended(start(folder, run, f"speed-{place}-{number}", **how))
            speeds[place].append(ranks[0]["samples_per_second"])
            seconds[place].append(time.monotonic() - begin)
    in_folder, at_url = (median(speeds[place]) for place in ("folder", "url"))
    return {
        "samples_per_second_folder": round(in_folder),
        "samples_per_second_url": round(at_url),
        "upload_share": round(1 - at_url / in_folder, 4),
        "job_seconds_folder": round(median(seconds["folder"]), 1),
        "job_seconds_url": round(median(seconds["url"]), 1),
    }


def resume(folder: Path, url: str) -> dict:
    """Resumes a run of both ranks on empty disks."""
    ended(start(folder, f"{url}/resumed", "before", steps=60))
    ranks = ended(start(folder, f"{url}/resumed", "after", steps=80, resume=True))
    seconds, begin = (max(rank[k] for rank in ranks) for k in ("first_step_after", "met_after"))
    result = {
        "resume_seconds": round(seconds, 1),
        "of_these_to_start": round(begin, 1),
        "own_megabytes": [round(rank["own_bytes"] / 1e6, 1) for rank in ranks],
        "fetched_of_own": [round(rank["fetched_bytes"] / rank["own_bytes"], 3) for rank in ranks],
    }
    return result | {"resume_seconds_of_10_gb": round(seconds_of_10_gb(result), 1)}


def seconds_of_10_gb(result: dict) -> float:
    """The seconds until the first step of a run with 10 GB of rows, by those of a smaller one."""
    begin, times = result["of_these_to_start"], 10_000 / sum(result["own_megabytes"])
    return begin + times * (result["resume_seconds"] - begin)


def goodput(result: dict) -> float:
    """The part of an hour with one preemption that trains what is kept, with 10 GB of rows."""
    return 3600 / (3600 + seconds_of_10_gb(result) + result["notice_seconds"])


def data(folder: Path, url: str, rounds: int) -> dict:
    """The speed with the data at the URL, of which machines have nothing yet, or in a folder, in turn."""
    from hotrows.runtime.remote import sent

    with sent(f"{url}/enc") as path:
        shutil.copytree(folder / "enc", path)
    places = {"folder": str(folder / "enc"), "url": f"{url}/enc"}
    speeds, seconds = {place: [] for place in places}, {place: [] for place in places}
    for number in range(rounds):
        for place in sorted(places, reverse=number % 2 == 1):
            begin, disks = time.monotonic(), f"data-{place}-{number}"
            how = {"data": places[place], "epochs": 8, "every": 10**6}
            ranks = ended(start(folder, str(folder / f"run-{disks}"), disks, **how))
            speeds[place].append(ranks[0]["samples_per_second"])
            seconds[place].append(time.monotonic() - begin)
    return {
        "data_samples_per_second_folder": round(median(speeds["folder"])),
        "data_samples_per_second_url": round(median(speeds["url"])),
        "data_url_speed": round(median(speeds["url"]) / median(speeds["folder"]), 3),
        "data_job_seconds_folder": round(median(seconds["folder"]), 1),
        "data_job_seconds_url": round(median(seconds["url"]), 1),
    }


def unequal(folder: Path) -> dict:
    """The speed of two ranks, of which the first needs 100 us for each sample, and the second 50."""
    speeds = {}
    for shares in ("equal", "auto"):
        how = {"slow": (1e-4, 5e-5), "steps": 160, "every": 10**6, "settings": {"shares": shares}}
        ranks = ended(start(folder, str(folder / f"run-{shares}"), f"disk-{shares}", **how))
        speeds[shares] = median(ranks[0]["steps"][-100:])
    return {
        "step_seconds_equal_shares": round(speeds["equal"], 4),
        "step_seconds_by_speed": round(speeds["auto"], 4),
        "gain_by_speed": round(speeds["equal"] / speeds["auto"], 2),
    }


def notices(folder: Path, url: str, proxy, num: int) -> dict:
    """Sends SIGTERM to one rank once a checkpoint is at the URL, and lets storage fail from then on."""
    from tests.machines.proxy import KINDS

    from hotrows.runtime.remote.files import open_files

    seconds, codes, limit = [], [], 25.0
    for number in range(num):
        run, kind = f"{url}/notice-{number}", KINDS[number % len(KINDS)]
        how = {"epochs": 10_000, "say": True, "every": 10, "notice": limit}
        ranks = start(folder, run, f"notice-{number}", **how)
        for line in ranks[0].stdout:
            if int(line) % 20 == 0 and open_files(run).read("checkpoints.json") is not None:
                break
        proxy.kinds, proxy.stall, proxy.rate = (kind,), 30.0, 1.0 if kind in ("503", "stall") else 0.5
        begin = time.monotonic()
        ranks[number % RANKS].send_signal(signal.SIGTERM)
        for rank in ranks:
            rank.communicate(timeout=120)
        seconds.append(time.monotonic() - begin)
        codes += [rank.returncode for rank in ranks]
        proxy.rate = 0.0
        for rank in range(RANKS):
            shutil.rmtree(folder / f"notice-{number}-{rank}", ignore_errors=True)
    return {
        "notices": num,
        "notices_answered_in_time": sum(s < limit for s in seconds) if not any(codes) else 0,
        "slowest_answer_seconds": round(max(seconds), 1),
    }


def preempted(folder: Path, url: str, num: int) -> dict:
    """Takes both machines away at seeded steps, with and without a notice in turn; no disk is left."""
    draw, run, twice, lost, answers = random.Random(3), f"{url}/preempted", [], 0, []
    last_step, is_begun = 0, False
    for number in range(num):
        has_notice, disks = number % 2 == 0, f"preempted-{number}"
        how = {"epochs": 100, "say": True, "every": 10, "resume": is_begun}
        ranks = start(folder, run, disks, **how, **({"notice": 25.0} if has_notice else {}))
        wanted, first = draw.randint(12, 40), None
        for line in ranks[0].stdout:
            step = int(line)
            first = step if first is None else first
            if step - first >= wanted:
                break
        twice.append(last_step - (first - 1) if is_begun else 0)
        lost += first == 1 and is_begun
        begin = time.time()
        for rank in ranks:
            rank.send_signal(signal.SIGTERM if has_notice else signal.SIGKILL)
        said = [rank.communicate(timeout=120)[0].splitlines() for rank in ranks]
        steps = [int(line) for line in said[0] if line.isdecimal()]
        last_step, is_begun = max([step, *steps]), True
        if has_notice:
            answers.append(json.loads(said[0][-1])["left"] - begin)
        for rank in range(RANKS):
            shutil.rmtree(folder / f"{disks}-{rank}", ignore_errors=True)
    return {
        "preemptions": num,
        "checkpoints_lost": lost,
        "notice_seconds": round(max(answers), 1),
        "steps_made_twice_after_notice": max(twice[1::2], default=0),
        "steps_made_twice_after_kill": max(twice[2::2], default=0),
        "checkpoint_every_steps": 10,
    }


def faults(folder: Path, wanted: int) -> dict:
    """Sends and fetches files by storage of which half of the calls fail."""
    from tests.machines.storage import Faulty

    from hotrows.runtime.remote import files as remote

    remote._FIRST_PAUSE = remote._MOST_PAUSE = 0.0001
    files = remote.RemoteFiles(f"file://{folder}/faulty")
    files._system = faulty = Faulty(files._system, 0.5, 5)
    number, other, content = 0, 0, folder / "content"
    while sum(faulty.faults.values()) < wanted:
        content.write_bytes(expected := random.Random(number).randbytes(100 + number % 900))
        files.put(str(number), content)
        files.get(str(number), folder / "back", len(expected))
        other += (folder / "back").read_bytes() != expected
        number += 1
    missing = number - len(files.names())
    return {"faults": wanted, "files": number, "files_lost": missing, "files_with_other_bytes": other}


if __name__ == "__main__":
    main()
