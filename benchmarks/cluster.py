"""A cluster on one machine: run a Horovod job on virtual hosts with links of a given rate.

    benchmarks/cluster.py --hosts 4 --rate 200mbit -- python train.py

The hosts h1 … hN are network namespaces on one switch. The command is what each rank runs,
without horovodrun: the stock launcher starts it on all of them. At the end stand the bytes that
each host sent and received, and the exit status is the job's. Needs iproute2, and root only where
users may not make namespaces, and for --cpus.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from virtual_hosts.cores import bandwidth, sweep
from virtual_hosts.launchers import LAUNCHERS
from virtual_hosts.network import bits_per_second
from virtual_hosts.problem import Problem, isolation
from virtual_hosts.session import Event, Outcome, run_job


def rate(text: str) -> str:
    """A rate as tc writes it, or ``none``."""
    if text != "none":
        try:
            bits_per_second(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return text


def host_rate(text: str) -> tuple[str, str]:
    """``h2=50mbit``."""
    host, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a host and a rate, e.g. h2=50mbit")
    return host, rate(value)


def share(text: str) -> float:
    """Cores of a host, and parts of one."""
    try:
        bandwidth(float(text))
    except ValueError:
        message = (
            f"{text!r} is no share of CPU time: e.g. 0.25, a quarter of a core (at least 0.001)"
        )
        raise argparse.ArgumentTypeError(message) from None
    return float(text)


def moment(text: str) -> tuple[str, float]:
    """``h2@30``."""
    host, at, seconds = text.partition("@")
    try:
        return host, float(seconds if at else "")
    except ValueError:
        message = f"{text!r}: expected a host and seconds after the start, e.g. h2@30"
        raise argparse.ArgumentTypeError(message) from None


def arguments() -> argparse.Namespace:
    """What the user asked for; hosts that do not exist are refused."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--hosts", type=int, required=True, metavar="N", help="how many, named h1 … hN")
    add("--slots", type=int, default=1, metavar="N", help="ranks on each host (1)")
    add("--rate", type=rate, default="none", metavar="200mbit|none",
        help="of every host's link, in each direction (none: not limited)")  # fmt: skip
    add("--host-rate", type=host_rate, action="append", default=[], metavar="h2=50mbit",
        help="of one host's link; may be given several times")  # fmt: skip
    add("--cpus", type=share, metavar="0.25",
        help="CPU time of every host, all its ranks together, in cores (not limited)")  # fmt: skip
    add("--cut", type=moment, action="append", default=[], metavar="h2@30",
        help="pull a host's cable so many seconds after the start")  # fmt: skip
    add("--restore", type=moment, action="append", default=[], metavar="h2@45", help="put it back")
    add("--launcher", choices=LAUNCHERS, default="gloo", help="horovodrun --gloo, or mpirun")
    add("--json", type=Path, metavar="FILE", help="write the account to this file")
    add("--lifeline", type=int, help=argparse.SUPPRESS)  # set where this script runs itself
    add("command", nargs="+", metavar="-- CMD", help="what each rank runs")
    options = parser.parse_args()
    if options.hosts < 1 or options.slots < 1:
        parser.error("there is at least one host with one slot")
    options.names = [f"h{number}" for number in range(1, options.hosts + 1)]
    for host, _ in (*options.host_rate, *options.cut, *options.restore):
        if host not in options.names:
            parser.error(f"there is no host {host!r}: they are h1 … h{options.hosts}")
    return options


def outside(options: argparse.Namespace) -> int:
    """Run this script again inside namespaces of its own, and see that it ends with us.

    Its lifeline is a pipe that only we hold open: it closes when we end, for whatever reason. What
    it could not remove, as it was killed, we do, or the next cluster does.
    """
    namespaces = isolation()
    if options.cpus:
        sweep()
    reading, writing = os.pipe()
    command = [*namespaces, sys.executable, __file__, "--lifeline", str(reading), *sys.argv[1:]]
    stop: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: stop.append(received))
    process = subprocess.Popen(command, pass_fds=[reading], start_new_session=True)
    os.close(reading)
    while process.poll() is None:
        if stop and writing >= 0:
            os.close(writing)
            writing = -1
        time.sleep(0.05)
    if options.cpus:
        sweep()
    return 128 + stop[0] if stop else process.returncode


def inside(options: argparse.Namespace) -> int:
    """Make the hosts, run the job, tell what they sent."""
    rates = dict.fromkeys(options.names, options.rate) | dict(options.host_rate)
    events = [Event(at, host, False) for host, at in options.cut]
    events += [Event(at, host, True) for host, at in options.restore]
    where = (rates, options.cpus, options.slots, options.launcher)
    outcome = run_job(options.command, *where, events, options.lifeline)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(account(outcome, options, rates), indent=1) + "\n")
    show(outcome, rates)
    status = outcome.status
    if status is None:
        return 1
    return status if status >= 0 else 128 - status


def account(outcome: Outcome, options: argparse.Namespace, rates: dict[str, str]) -> dict[str, Any]:
    """Everything about the run, ready for JSON."""
    hosts = {
        name: {"rate": rates[name], "sent": traffic.sent, "received": traffic.received}
        for name, traffic in outcome.traffic.items()
    }
    return {
        "command": options.command, "launcher": options.launcher, "slots": options.slots,
        "cpus": options.cpus, "status": outcome.status, "seconds": outcome.seconds, "hosts": hosts,
    }  # fmt: skip


def show(outcome: Outcome, rates: dict[str, str]) -> None:
    """A line for every host."""
    end = "interrupted" if outcome.status is None else f"status {outcome.status}"
    print(f"cluster: {outcome.seconds:.1f} s, {end}")
    row = "{:<6}{:>10}{:>18}{:>18}"
    print(row.format("host", "rate", "bytes sent", "bytes received"))
    for name, traffic in outcome.traffic.items():
        print(row.format(name, rates[name], f"{traffic.sent:,}", f"{traffic.received:,}"))


def main() -> int:
    """Outside first, then inside; returns the exit status."""
    options = arguments()
    try:
        return outside(options) if options.lifeline is None else inside(options)
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
