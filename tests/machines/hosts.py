"""Machines that are namespaces of this one: each with a network address, a name and a disk of its own.

A machine sees its own folder at one path, `disk`, which is there on all of them: nothing is shared.
"""

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OUTSIDE = "10.82.7.254"


@dataclass(frozen=True)
class Machine:
    """One machine; its disk is `folder` here, and `disk` there."""

    name: str
    address: str
    folder: Path
    disk: Path

    def start(self, words, said, **environment):
        """Starts a command there, whose output goes to a file."""
        script = (
            f'hostname {self.name}; mount --bind {self.folder} {self.disk}; cd {self.disk}; exec "$@"'
        )
        command = [
            "ip",
            "netns",
            "exec",
            self.name,
            "unshare",
            "--mount",
            "--uts",
            "sh",
            "-c",
            script,
            "sh",
        ]
        with open(said, "w") as output:
            return subprocess.Popen(
                [*command, *words],
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "XDG_CACHE_HOME": str(self.disk / "cache"),
                    "GLOO_SOCKET_IFNAME": "eth0",
                    **environment,
                },
            )

    def plug(self, up):
        """Connects the network of the machine, or cuts it."""
        _run("ip", "-n", self.name, "link", "set", "eth0", "up" if up else "down")


def torchrun(machines, number, *words):
    """The command that starts the rank of one of the machines, which meet at the first."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(machines))),
        *("--nproc-per-node", "1", "--rdzv-backend", "c10d", "--local-addr", machines[number].address),
        *("--rdzv-endpoint", f"{machines[0].address}:29872", "--rdzv-id", "job"),
        *("--rdzv-conf", f"is_host={int(number == 0)},join_timeout=60", "-m", "hotrows", *words),
    ]


@contextmanager
def several(num, folder, network=7):
    """Yields machines on one network, with the folders folder/machine-0 and so on; PermissionError where
    none can be made. The tests are at 10.82.7.254 on it. network: another number for other machines."""
    (disk := folder / "disk").mkdir()
    machines, bridge, pairs = [], f"hotrows-hub{network}", [f"hotrows{network}-v{k}" for k in range(num)]
    for k in range(num):
        (of_machine := folder / f"machine-{k}").mkdir()
        machines.append(Machine(f"hotrows{network}-{k}", f"10.82.{network}.{k + 1}", of_machine, disk))
    try:
        _remove(machines, [bridge, *pairs])
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"10.82.{network}.254/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for machine, pair in zip(machines, pairs, strict=True):
            _run("ip", "netns", "add", machine.name)
            peer = ("peer", "name", "eth0", "netns", machine.name)
            _run("ip", "link", "add", pair, "master", bridge, "type", "veth", *peer)
            _run("ip", "link", "set", pair, "up")
            _run("ip", "-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            _run("ip", "-n", machine.name, "link", "set", "lo", "up")
            machine.plug(True)
        yield machines
    finally:
        _remove(machines, [bridge, *pairs])


def _remove(machines, links):
    words = [("netns", "del", machine.name) for machine in machines]
    for line in [*words, *(("link", "del", link) for link in links)]:
        subprocess.run(["ip", *line], capture_output=True, check=False)


def _run(*words):
    try:
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise PermissionError(f"there is no command {words[0]} (package iproute2)") from None
    if ended.returncode:
        raise PermissionError(f"{' '.join(words)}: {ended.stderr.strip()}")
