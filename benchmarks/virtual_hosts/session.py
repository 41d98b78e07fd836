"""One job on virtual hosts, from their making to the account of what they sent."""

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from .cores import shares, write_entry
from .launchers import LAUNCHERS, environment, write_stand_in
from .network import Network, Traffic
from .problem import run

GRACE = 5.0  # seconds that an interrupted job has to end by itself
LOOK = 0.05  # seconds between two looks whether the job has ended


@dataclass(frozen=True)
class Event:
    """A cable to be pulled or put back, in seconds after the job's start."""

    seconds: float
    host: str
    connected: bool


@dataclass(frozen=True)
class Outcome:
    """What the job did; ``status`` None if it was interrupted."""

    status: int | None
    seconds: float
    traffic: dict[str, Traffic]


def run_job(
    command: Sequence[str],
    rates: dict[str, str],
    cpus: float | None,
    slots: int,
    launcher: str,
    events: Sequence[Event],
    lifeline: int,
) -> Outcome:
    """Run ``command`` on all hosts until it ends or the other end of ``lifeline`` closes.

    Each rank enters the share of its host by itself, as launchers start those on their own host
    without ssh; launchers stay outside of it.
    """
    with (
        tempfile.TemporaryDirectory(prefix="cluster-") as name,
        shares(rates, cpus) if cpus else nullcontext() as groups,
        Network.create(rates) as network,
    ):
        folder = Path(name)
        if cpus and groups:
            command = [str(write_entry(folder, groups, rates, cpus)), *command]
        name_hosts(folder, network)
        write_stand_in(folder, network)
        where = ",".join(f"{host}:{slots}" for host in network.hosts)
        launch = LAUNCHERS[launcher](where, slots * len(rates), folder)
        first = next(iter(network.hosts.values()))
        before = {host.name: host.traffic() for host in network.hosts.values()}
        start = time.monotonic()
        process = subprocess.Popen(
            first.inside(*launch, *command),
            env=environment(launcher, folder),
            stdin=subprocess.DEVNULL,
        )
        status = _attend(process, network, sorted(events, key=lambda e: e.seconds), lifeline)
        seconds = time.monotonic() - start
        after = {host.name: host.traffic() - before[host.name] for host in network.hosts.values()}
    return Outcome(status, seconds, after)


def name_hosts(folder: Path, network: Network) -> None:
    """Let every host resolve every host: /etc/hosts is another file in their mount namespaces."""
    lines = ["127.0.0.1 localhost"]
    lines += [f"{network.address(i)} {name}" for i, name in enumerate(network.hosts, 1)]
    file = folder / "hosts"
    file.write_text("\n".join(lines) + "\n")
    for host in network.hosts.values():
        run(*host.inside("mount", "--bind", str(file), "/etc/hosts"))


def _attend(
    process: subprocess.Popen, network: Network, events: list[Event], lifeline: int
) -> int | None:
    """Let events happen in time; returns the job's status, None if the lifeline closed first."""
    start = time.monotonic()
    while process.poll() is None:
        while events and time.monotonic() - start >= events[0].seconds:
            network.plug(events[0].host, events[0].connected)
            print(f"cluster: {events[0].host} {'restored' if events[0].connected else 'cut'} "
                  f"after {time.monotonic() - start:.1f} s", flush=True)  # fmt: skip
            del events[0]
        if select.select([lifeline], [], [], LOOK)[0] and not os.read(lifeline, 1):
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
            return None
    return process.returncode
