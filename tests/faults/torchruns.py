"""Jobs under torchrun: on this host, and on two hosts that are network namespaces of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.inject import Fault, to_text
from tests.faults.jobs import SETTINGS

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **more}


def script(data: Path, run: Path, faults: Sequence[Fault], timeout: float, *more: str) -> list[str]:
    """What torchrun runs: `hotrows train`, with faults."""
    return [
        "-m", "tests.faults.inject", to_text(tuple(faults)), "train", str(data), *SETTINGS,
        "--timeout", str(timeout), "--run-dir", str(run), *more,
    ]  # fmt: skip


def on_this_host(
    data: Path, run: Path, num_ranks: int, *torchrun: str, faults: Sequence[Fault] = (),
    timeout: float = 60, patience: float = 240,
) -> tuple[int, str]:  # fmt: skip
    """Its exit code, and what was said on standard error."""
    command = [
        *_TORCHRUN, "--standalone", "--nproc-per-node", str(num_ranks), *torchrun,
        *script(data, run, faults, timeout),
    ]  # fmt: skip
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=patience, check=False, env=environment()
    )
    return ended.returncode, ended.stderr


@dataclass(frozen=True)
class Host:
    """A network namespace with one cable."""

    name: str
    cable: str
    address: str

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def plug(self, up: bool) -> None:
        _ip("-n", self.name, "link", "set", self.cable, "up" if up else "down")
        if up:  # routes go with the link
            _ip("-n", self.name, "route", "replace", _NETWORK, "dev", self.cable)

    def slow_down(self, rate: str) -> None:
        """Lets so much out by the cable, as 1mbit a second."""
        bucket = ["tbf", "rate", rate, "burst", "16kb", "latency", "400ms"]
        _run("tc", "-n", self.name, "qdisc", "replace", "dev", self.cable, "root", *bucket)


_NETWORK = "10.81.7.0/24"


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts and a cable between them; PermissionError where none can be made."""
    hosts = (Host("hotrows-a", "cable-a", "10.81.7.1"), Host("hotrows-b", "cable-b", "10.81.7.2"))
    try:
        for host in hosts:
            _ip("netns", "add", host.name)
        _ip(
            "link", "add", hosts[0].cable, "netns", hosts[0].name, "type", "veth", "peer", "name",
            hosts[1].cable, "netns", hosts[1].name,
        )  # fmt: skip
        for host in hosts:
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.cable)
            _ip("-n", host.name, "link", "set", "lo", "up")
            host.plug(True)
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)


def start_on(
    hosts: Sequence[Host], data: Path, run: Path, said: Path, *torchrun: str,
    ranks_per_host: int = 1, timeout: float = 15, more: Sequence[str] = (),
    faults: Sequence[Fault] = (),
) -> list[subprocess.Popen]:  # fmt: skip
    """A torchrun on each host, which meet at the first one; what they say goes to files `said`-0, -1."""
    started = []
    for number, host in enumerate(hosts):
        command = host.command(
            *_TORCHRUN, "--nnodes", str(len(hosts)), "--nproc-per-node", str(ranks_per_host),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].address}:29871",
            "--rdzv-id", run.name, "--local-addr", host.address, "--rdzv-conf",
            f"is_host={int(number == 0)},join_timeout=60",  # its name resolves to no address here
            *torchrun, *script(data, run, faults, timeout, *more),
        )  # fmt: skip
        with open(said.with_name(f"{said.name}-{number}"), "w") as output:
            started.append(
                subprocess.Popen(
                    command,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env=environment(GLOO_SOCKET_IFNAME=host.cable),
                )
            )
    return started


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    try:
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise PermissionError(f"there is no command {words[0]} (package iproute2)") from None
    if ended.returncode:
        raise PermissionError(f"{' '.join(words)}: {ended.stderr.strip()}")
