"""The command doctor: what this machine has, and how fast it is."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import click

from hotrows.cli.commands import VERBOSE, command, is_set
from hotrows.cli.paths import HERE

_NOT_FOR_USERS = ("dev", "docs", "notebooks")  # extras


@command(
    "doctor",
    "hotrows doctor --verbose",
    "hotrows doctor",
    "hotrows doctor --store tables",
    "hotrows doctor --renew",
)
@click.option(
    "--store",
    type=HERE,
    help="Measure the disk of a file store that is going to be, and warn where it is too slow.",
)
@click.option(
    "--renew", is_flag=True, help="Forget what runs have measured here: the next ones measure anew."
)
def doctor_command(store: Path | None, renew: bool) -> None:
    """Show what was found on this machine.

    Cores, memory, native core, PyTorch, GPU, and the optional packages that are installed. --verbose also
    measures how fast a GPU's memory and kernels are.

    Long runs of several ranks measure their network, once on each machine, and keep it, so that the same
    command has the same result; --renew is for after a change of the machine, or where it was busy then.
    """
    from hotrows.runtime import measurements
    from hotrows.runtime.device import find
    from hotrows.runtime.machine import environment
    from hotrows.train.costs.measure_machine import device_rates

    if renew:
        measurements.forget()
    machine = environment()
    for name, value in machine.items():
        click.echo(f"{name.replace('_', ' '):<16} {'none' if value is None else value}")
    kept = len(list(measurements.folder().glob("*.json")))
    click.echo(f"{'measurements':<16} {kept:,} kept in {measurements.folder()}")
    for extra, packages in _extras().items():
        click.echo(f"{extra:<16} {packages}")
    if machine["gpu"] is not None and is_set(VERBOSE):
        click.echo("\ndevice, measured, in GB/s:")
        for name, rate in device_rates(find("cuda")).items():
            click.echo(f"  {name:<36} {rate / 1e9:,.1f}")
    if store is not None:
        _show_disk(store)


def _extras() -> dict[str, str]:
    """What each extra of the package needs, with versions, or how to install it."""
    try:
        required = metadata.requires("hotrows") or []
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return {}
    extras: dict[str, list[str]] = {}
    for line in required:
        name, _, of_extra = line.partition("extra == ")
        extra = re.sub(r"[^\w]", "", of_extra)
        if extra and extra not in _NOT_FOR_USERS and not line.startswith("hotrows["):
            extras.setdefault(extra, []).append(re.split(r"[^\w.-]", name, maxsplit=1)[0])
    return {extra: _installed(extra, packages) for extra, packages in extras.items()}


def _installed(extra: str, packages: list[str]) -> str:
    versions, missing = [], []
    for package in packages:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            missing.append(package)
    absent = [f"without {', '.join(missing)}: pip install 'hotrows[{extra}]'"] if missing else []
    return "; ".join([", ".join(versions)] * bool(versions) + absent)


def _show_disk(store: Path) -> None:
    """Measures the disk where a store is going to be, and warns if it is slow."""
    from hotrows.train.costs.measure_disk import measure_disk

    folder = store
    while not folder.is_dir():  # the store is made later
        folder = folder.parent
    disk = measure_disk(folder)
    click.echo(f"\ndisk of {folder.resolve()}, measured:")
    click.echo(f"  {'rows read at random places':<36} {disk.reads_per_second:,.0f} a second")
    click.echo(f"  {'records appended':<36} {disk.bytes_per_second / 1e6:,.0f} MB a second")
    click.echo(f"  {'tables rewritten by a merge':<36} {disk.merged_per_second / 1e6:,.0f} MB a second")
    if disk.warning:
        click.echo(f"warning: {disk.warning}")
