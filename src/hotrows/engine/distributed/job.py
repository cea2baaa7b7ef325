"""The job of this process, as torchrun's environment variables describe it, without PyTorch."""

from __future__ import annotations

import os


class RankLost(RuntimeError):
    """Another rank ended, or does not answer."""


def is_several() -> bool:
    """True if several ranks make up the job."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def ranks_here() -> int:
    """How many ranks of the job share this host's cores; 1 where nobody says so."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def rank() -> int:
    """The rank of this process, 0 where it is alone."""
    return int(os.environ.get("RANK", "0")) if is_several() else 0


def is_first() -> bool:
    """True if this process is rank 0, alone or among several."""
    return rank() == 0


def name() -> str:
    """`rank 1: ` within a job of several ranks, for messages; empty within a job of one."""
    return f"rank {os.environ['RANK']}: " if is_several() else ""


def command() -> list[str]:
    """The words before those of a command that start the ranks of this host as torchrun did, or this one
    alone."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ["hotrows"]
    words, env = f"torchrun --nproc-per-node {ranks_here()}", os.environ
    if env["GROUP_WORLD_SIZE"] != "1":
        words += f" --nnodes {env['GROUP_WORLD_SIZE']} --node-rank {env['GROUP_RANK']}"
        words += f" --master-addr {env['MASTER_ADDR']} --master-port {env['MASTER_PORT']}"
    return [*words.split(), "-m", "hotrows"]


def restarted() -> bool:
    """True if torchrun has started this job again after a failure (`--max-restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
