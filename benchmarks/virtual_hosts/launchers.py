"""The stock launchers, told to reach the hosts by a stand-in for ssh."""

import os
import sys
from pathlib import Path

from .network import Network

#: Takes ssh's place: a host, a command, and options before the host or behind it. The command
#: enters the host's namespaces.
STAND_IN = """#!/bin/sh
host=
while [ $# -gt 0 ]; do
    case "$1" in
        -[oplieFJLRSWbcDEIKmQw]) shift 2; continue ;;
        -*) shift; continue ;;
    esac
    [ -z "$host" ] || break
    case "$1" in
{hosts}
        *) echo "ssh: no virtual host $1" >&2; exit 255 ;;
    esac
    shift
done
exec nsenter -t "$host" -n -u -m sh -c "$*"
"""


def write_stand_in(folder: Path, network: Network) -> Path:
    """An executable ``ssh`` in ``folder`` that reaches the hosts of ``network``."""
    cases = [f"        {h.name}) host={h.process.pid} ;;" for h in network.hosts.values()]
    script = folder / "ssh"
    script.write_text(STAND_IN.format(hosts="\n".join(cases)))
    script.chmod(0o755)
    return script


def gloo(hosts: str, count: int, _folder: Path) -> list[str]:
    """Horovodrun with Gloo; the check that ssh works is not remembered for other clusters."""
    return [
        "horovodrun", "--gloo", "--disable-cache", "--network-interfaces", "eth0",
        "-np", str(count), "-H", hosts,
    ]  # fmt: skip


def mpi(hosts: str, count: int, folder: Path) -> list[str]:
    """mpirun, with its files apart from those of other clusters."""
    settings = {
        "plm_rsh_agent": str(folder / "ssh"),
        "oob_tcp_if_include": "eth0",
        "btl_tcp_if_include": "eth0",
        "btl_vader_single_copy_mechanism": "none",
        "orte_tmpdir_base": str(folder),
    }
    options = [word for name, value in settings.items() for word in ("--mca", name, value)]
    return [
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
        "-np", str(count), "-H", hosts, *options,
    ]  # fmt: skip


LAUNCHERS = {"gloo": gloo, "mpi": mpi}
ENVIRONMENT = {
    "gloo": {},
    "mpi": {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"},
}


def environment(launcher: str, folder: Path) -> dict[str, str]:
    """For the launcher, and for the ranks, which inherit it.

    Its ssh is the one in ``folder``, its horovodrun and python by preference those of this Python.
    """
    folders = [str(folder), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    path = os.pathsep.join(folders)
    return {**os.environ, **ENVIRONMENT[launcher], "PATH": path}
