"""A share of CPU time for every host: a control group each, limited by the kernel's CFS bandwidth.

Groups do not vanish with their processes, as namespaces do. A cluster removes its own in the end,
and holds a lock on them until then, which the kernel opens however the cluster ends: what is found
unlocked belongs to nobody, and the next cluster sweeps it away.
"""

import errno
import fcntl
import math
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .problem import Problem

#: Microseconds after which a host gets its share anew. A host that has used it up sleeps for the
#: rest, and others wait for its messages: with the kernel's default, 100 ms, a ring would crawl at
#: the pace of these naps. Much less is of no use: a tick of the kernel, at which it looks, takes 1
#: to 4 ms.
PERIOD = 10_000
LEAST_QUOTA, LONGEST_PERIOD = 1_000, 1_000_000  # of the kernel
PREFIX = "virtual-hosts-"
PATIENCE = 5.0  # seconds for killed processes to end

NO_GROUPS = """--cpus needs the cpu controller of the kernel's control groups, and none is mounted:
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  or, where controllers are those of version 1, mount -t cgroup -o cpu cgroup /sys/fs/cgroup/cpu"""
NOT_ALLOWED = """
  --cpus needs control groups that may be written (sudo; in a container: docker run --privileged)
  and a kernel with CONFIG_CFS_BANDWIDTH"""
BUSY = """
  a container's topmost group cannot divide its CPU time while processes are in it; move them:
  cd {root} && mkdir all && for p in $(cat cgroup.procs); do echo $p > all/cgroup.procs; done"""

#: Runs a command in the share of the host it is on. The path is that of the first process, as hosts
#: have a /sys of their own; 0 is whoever writes.
ENTRY = """#!/bin/sh
host=$(hostname)
case $host in
{cores}
esac
echo 0 > "/proc/1/root{groups}/$host/cgroup.procs" && exec taskset -c "$cores" "$@"
"""


def bandwidth(cpus: float) -> tuple[int, int]:
    """Quota and period in microseconds.

    >>> bandwidth(0.25)
    (2500, 10000)
    >>> bandwidth(0.02)  # the kernel allows no quota below 1 ms
    (1000, 50000)
    """
    if not LEAST_QUOTA / LONGEST_PERIOD <= cpus < math.inf:
        raise ValueError(f"the kernel cannot give {cpus} cores")
    period = max(PERIOD, math.ceil(LEAST_QUOTA / cpus))
    return max(LEAST_QUOTA, round(cpus * period)), period


@dataclass(frozen=True)
class Hierarchy:
    """Where the cpu controller is mounted, and the version of control groups it is one of."""

    root: Path
    version: int

    @classmethod
    def find(cls, mounts: str) -> "Hierarchy":
        """In the text of /proc/mounts; `Problem` where there is none."""
        for line in mounts.splitlines():
            root, kind, options = line.split()[1:4]
            if kind == "cgroup" and "cpu" in options.split(","):
                return cls(Path(root), 1)
            if kind == "cgroup2":
                with suppress(OSError):
                    if "cpu" in Path(root, "cgroup.controllers").read_text().split():
                        return cls(Path(root), 2)
        raise Problem(NO_GROUPS)

    def limits(self, cpus: float) -> dict[str, str]:
        """What to write into which file of a group.

        >>> Hierarchy(Path("/sys/fs/cgroup"), 2).limits(0.5)
        {'cpu.max': '5000 10000'}
        """
        quota, period = bandwidth(cpus)
        if self.version == 2:
            return {"cpu.max": f"{quota} {period}"}
        return {"cpu.cfs_period_us": f"{period}", "cpu.cfs_quota_us": f"{quota}"}

    def divide(self, group: Path) -> None:
        """Let groups below ``group`` have limits; in version 1 they have them anyway."""
        control = group / "cgroup.subtree_control"
        if self.version == 2 and "cpu" not in control.read_text().split():
            self.write(control, "+cpu")

    def write(self, file: Path, text: str) -> None:
        """Give the kernel a setting; `Problem` where it refuses."""
        try:
            file.write_text(text)
        except OSError as error:
            hint = BUSY.format(root=self.root) if error.errno == errno.EBUSY else NOT_ALLOWED
            raise Problem(f"{file} = {text}: {error.strerror}{hint}") from None


def hierarchy() -> Hierarchy:
    """Of this machine or container."""
    return Hierarchy.find(Path("/proc/self/mounts").read_text())


@contextmanager
def shares(hosts: Iterable[str], cpus: float) -> Iterator[Path]:
    """A folder of groups, one for each host; in the end they go with all processes in them."""
    groups = hierarchy()
    folder, lock = _claim(groups.root)
    try:
        groups.divide(groups.root)
        groups.divide(folder)
        for host in hosts:
            (folder / host).mkdir()
            for file, text in groups.limits(cpus).items():
                groups.write(folder / host / file, text)
        yield folder
    finally:
        _remove(folder, kill=True)
        os.close(lock)


def cores_of(hosts: Iterable[str], cpus: float, cores: Sequence[int]) -> dict[str, Sequence[int]]:
    """Where each host may run: on one core if its share is no more, dealt out in turn.

    On two cores, stock Horovod took five to ten times as long on 4 hosts of 0.25 cores. Probably
    since the kernel hands a share to cores in slices of 5 ms, more than there is in a period: a
    thread that polls on one core leaves nothing for the one it waits for on the other. On one core
    threads take turns.

    >>> cores_of(["h1", "h2", "h3"], 0.5, [0, 1])
    {'h1': [0], 'h2': [1], 'h3': [0]}
    """
    return {host: [cores[i % len(cores)]] if cpus <= 1 else cores for i, host in enumerate(hosts)}


def write_entry(folder: Path, groups: Path, hosts: Iterable[str], cpus: float) -> Path:
    """An executable in ``folder`` that runs a command in its host's share."""
    where = cores_of(hosts, cpus, sorted(os.sched_getaffinity(0)))
    cases = [f"    {host}) cores={','.join(map(str, cores))} ;;" for host, cores in where.items()]
    script = folder / "enter"
    script.write_text(ENTRY.format(cores="\n".join(cases), groups=groups))
    script.chmod(0o755)
    return script


def sweep() -> None:
    """Remove the groups of clusters that were killed before they could do it themselves."""
    for folder in hierarchy().root.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it has just been removed, or somebody holds the lock
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder)
            finally:
                os.close(lock)


def _claim(root: Path) -> tuple[Path, int]:
    """A new group, and a lock on it; another cluster may sweep it away before we have the lock."""
    while True:
        try:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        except OSError as error:
            raise Problem(f"{root}: {error.strerror}{NOT_ALLOWED}") from None
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _remove(folder: Path, kill: bool = False) -> None:
    """Remove a group and those in it, which the kernel allows once their processes have ended.

    Should these take too long, the groups are left to the next sweep.
    """
    end = time.monotonic() + PATIENCE
    while folder.exists() and time.monotonic() < end:
        for group in [*(path for path in folder.iterdir() if path.is_dir()), folder]:
            if kill:
                _kill(group)
            with suppress(OSError):
                group.rmdir()
        time.sleep(0.01)


def _kill(group: Path) -> None:
    """End what runs in a group; processes of other process namespaces are told as 0."""
    for line in (group / "cgroup.procs").read_text().split():
        if int(line):
            with suppress(ProcessLookupError):
                os.kill(int(line), signal.SIGKILL)
