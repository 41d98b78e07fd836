"""The slow network that a demo can have on this machine: virtual hosts, or the next best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from sys import executable

from traffic import refusal
from virtual_hosts.network import bits_per_second
from virtual_hosts.problem import Problem, isolation

HOSTS, RANKS = 4, 2  # virtual hosts; ranks of this machine where there are none
CLUSTER = Path(__file__).with_name("cluster.py")
HOROVODRUN = Path(executable).with_name("horovodrun")
UNITS = {"kbit": " kb/s", "mbit": " Mb/s", "gbit": " Gb/s"}


@dataclass(frozen=True)
class Network:
    """What to call it, how ranks are launched on it, and what showcase.py has to know of it."""

    label: str
    launcher: list[str]
    options: list[str]
    notes: tuple[str, ...] = ()  # why it is no better one


def virtual(rate: str) -> Network:
    """Hosts with links of that rate in both directions; bytes are those of their interfaces."""
    isolation()
    launcher = [executable, str(CLUSTER), "--hosts", str(HOSTS), "--rate", rate, "--"]
    label = f"{HOSTS} virtual hosts, {written(rate)} links"
    return Network(label, launcher, ["--count", "interface"])


def paced(rate: str) -> Network:
    """Ranks of this machine whose TCP connections have that rate."""
    if reason := refusal(bits_per_second(rate) / 8):
        raise Problem(f"TCP connections cannot be slowed down: {reason}")
    return given(f"localhost:{RANKS}", f"{RANKS} ranks", rate)


def loopback(rate: str) -> Network:  # noqa: ARG001
    """Ranks of this machine, as fast as it copies."""
    return given(f"localhost:{RANKS}", f"{RANKS} ranks, loopback at full speed", "none")


def given(hosts: str, label: str, rate: str) -> Network:
    """On ``name:slots,…``, their connections paced to that rate, or left alone for ``none``."""
    ranks = sum(int(host.partition(":")[2] or 1) for host in hosts.split(","))
    launcher = [str(HOROVODRUN), "--gloo", "-np", str(ranks), "-H", hosts]
    if rate == "none":
        return Network(label, launcher, [])
    return Network(f"{label}, TCP paced to {written(rate)}", launcher, ["--pace", rate])


#: The best first.
KINDS: dict[str, Callable[[str], Network]] = {
    "virtual": virtual, "paced": paced, "loopback": loopback,
}  # fmt: skip


def best(rate: str, kinds: Sequence[str] = tuple(KINDS)) -> Network:
    """The first kind that can be had here, with what keeps us from better ones in its notes."""
    notes: list[str] = []
    for kind in kinds[:-1]:
        try:
            return replace(KINDS[kind](rate), notes=tuple(notes))
        except Problem as problem:
            notes.append(str(problem))
    return replace(KINDS[kinds[-1]](rate), notes=tuple(notes))


def written(rate: str) -> str:
    """A rate as people write it.

    >>> written("200mbit")
    '200 Mb/s'
    """
    return rate[:-4] + UNITS[rate[-4:]]
