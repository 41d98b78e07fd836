"""Virtual hosts: a namespace each, a link each, all links on one switch.

A host is a process that sleeps in network, host name and mount namespaces of its own; commands
enter them by its process id. Nothing has a name outside: as soon as these processes end, however
they do, the kernel removes namespaces, links and queues, and clusters cannot collide.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .problem import Problem, run

#: What a link lets through at once: the bytes of a millisecond, and at least two segments of 64 KiB
#: as the kernel hands them over (with one, a ring at 200 Mb/s loses a fifth of the rate).
BURST_SECONDS, LEAST_BURST = 1e-3, 2 * 65_536
#: How long a packet may queue before it is dropped.
QUEUE = "100ms"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

# IPv6 would add packets of its own to the counters. A /sys of its own shows the host's eth0.
PREPARE = """
set -e
hostname {name}
for scope in all default; do
    file=/proc/sys/net/ipv6/conf/$scope/disable_ipv6
    if [ -e $file ]; then echo 1 > $file; fi
done
mount -t sysfs sysfs /sys
ip link set lo up
echo ready
exec sleep infinity
"""


def bits_per_second(rate: str) -> float:
    """What ``200mbit`` and the like mean.

    >>> bits_per_second("1.5gbit")
    1500000000.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if not match or not float(match[1]):
        raise ValueError(f"{rate!r} is no rate: e.g. 200mbit, 1gbit or none")
    return float(match[1]) * UNITS[match[2]]


@dataclass(frozen=True)
class Traffic:
    """What has passed a host's eth0, headers included."""

    sent: int
    received: int

    def __sub__(self, earlier: "Traffic") -> "Traffic":
        return Traffic(self.sent - earlier.sent, self.received - earlier.received)


@dataclass(frozen=True)
class Namespace:
    """A sleeping process, and with it the namespaces it is in."""

    name: str
    process: subprocess.Popen

    @classmethod
    def create(cls, name: str) -> "Namespace":
        process = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", PREPARE.format(name=name)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        if process.stdout.readline() != "ready\n":
            raise Problem(f"could not prepare the namespace of {name}")
        return cls(name, process)

    def inside(self, *command: str) -> list[str]:
        """The command line that runs ``command`` on this host, in the folder we are in."""
        enter = ["nsenter", "-t", str(self.process.pid), "-n", "-u", "-m"]
        return [*enter, "env", "--chdir", str(Path.cwd()), *command]

    def traffic(self) -> Traffic:
        """Counters of eth0 since the host was made."""
        table = Path(f"/proc/{self.process.pid}/net/dev").read_text()
        numbers = next(line for line in table.splitlines() if "eth0:" in line).split(":")[1].split()
        return Traffic(sent=int(numbers[8]), received=int(numbers[0]))


class Network:
    """Hosts h1 … hN on a switch; ``rates`` shape the link of each in both directions."""

    def __init__(self, switch: Namespace, hosts: list[Namespace]) -> None:
        self.switch = switch
        self.hosts = {host.name: host for host in hosts}

    @classmethod
    @contextmanager
    def create(cls, rates: Mapping[str, str]) -> Iterator["Network"]:
        """Make a host for every key of ``rates``; remove all of them in the end."""
        made: list[Namespace] = []
        try:
            made.extend(Namespace.create(name) for name in ("switch", *rates))
            network = cls(made[0], made[1:])
            run(*network.switch.inside("ip", "link", "add", "bridge0", "type", "bridge"))
            run(*network.switch.inside("ip", "link", "set", "bridge0", "up"))
            for number, (name, rate) in enumerate(rates.items(), 1):
                network.connect(name, network.address(number))
                network.shape(name, rate)
            yield network
        finally:
            for namespace in made:
                namespace.process.kill()
                namespace.process.communicate()

    @staticmethod
    def address(number: int) -> str:
        """Of the host with this number. No route leads out of the namespaces: any network does."""
        return f"10.0.{number // 250}.{number % 250 + 1}"

    def connect(self, name: str, address: str) -> None:
        """Lay a cable from the host's eth0 to a port of the switch, named as the host."""
        host, switch = self.hosts[name], self.switch
        ends = (str(host.process.pid), str(switch.process.pid))
        pair = ("eth0", "netns", ends[0], "type", "veth", "peer", "name", name, "netns", ends[1])
        run("ip", "link", "add", *pair)
        run(*host.inside("ip", "address", "add", f"{address}/16", "dev", "eth0"))
        run(*host.inside("ip", "link", "set", "eth0", "up"))
        run(*switch.inside("ip", "link", "set", name, "master", "bridge0", "up"))

    def shape(self, name: str, rate: str) -> None:
        """Limit a host's link to ``rate`` in each direction, or not at all for ``none``."""
        for namespace, device in ((self.hosts[name], "eth0"), (self.switch, name)):
            discipline = ["noqueue"]
            if rate != "none":
                burst = max(bits_per_second(rate) / 8 * BURST_SECONDS, LEAST_BURST)
                discipline = ["tbf", "rate", rate, "burst", f"{burst:.0f}", "latency", QUEUE]
            run(*namespace.inside("tc", "qdisc", "replace", "dev", device, "root", *discipline))

    def plug(self, name: str, connected: bool) -> None:
        """Pull a host's cable out of the switch, or put it back."""
        state = "up" if connected else "down"
        run(*self.switch.inside("ip", "link", "set", name, state))
