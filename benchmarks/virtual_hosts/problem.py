"""What keeps a cluster from being made, and what it needs."""

import os
import shutil
import subprocess
from pathlib import Path

TOOLS = {
    **dict.fromkeys(("ip", "tc"), "iproute2"),
    **dict.fromkeys(("unshare", "nsenter", "taskset"), "util-linux"),
}
#: Where some of them are, but not on the PATH of users other than root.
ADMIN_FOLDERS = ("/usr/sbin", "/sbin")

#: Namespaces around everything: what is in them ends with their first process, and cables may be
#: laid between hosts made in them.
NAMESPACES = ["--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
#: Root's own, or those of anybody in a user namespace, in which he passes for root.
ISOLATIONS = (["unshare", *NAMESPACES], ["unshare", "--user", "--map-root-user", *NAMESPACES])
#: All that making hosts needs, once.
REHEARSAL = """
exec unshare --net --uts --mount sh -ec '
    hostname rehearsal
    mount -t sysfs sysfs /sys
    ip link add veth0 type veth peer name veth1
    ip link add bridge0 type bridge
    tc qdisc add dev veth0 root tbf rate 1mbit burst 131072 latency 100ms'
"""

NO_NAMESPACES = """virtual hosts are network namespaces, and none can be made here
{said}
  on a machine of your own: sudo, or let users make namespaces{settings}
  in a container: docker run --privileged (it takes SYS_ADMIN and NET_ADMIN)"""
#: Settings of the kernel that keep users from it: the value that forbids, and one that allows.
SETTINGS = {
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    "kernel/unprivileged_userns_clone": ("0", "1"),
    "user/max_user_namespaces": ("0", "15000"),
}


class Problem(Exception):
    """Told to the user as it is, without a traceback."""


def run(*command: str) -> str:
    """Standard output of a command; `Problem` with what it said where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Problem(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def isolation() -> list[str]:
    """The command in whose namespaces hosts can be made, by this user on this machine.

    `Problem` where a tool is missing, or where kernel or container allow neither root's namespaces
    nor a user's.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    folders += [folder for folder in ADMIN_FOLDERS if folder not in folders]
    os.environ["PATH"] = os.pathsep.join(folders)
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            raise Problem(f"{tool} is not on PATH: apt-get install {package} (Debian, Ubuntu)")
    said = []
    for namespaces in ISOLATIONS:
        tried = subprocess.run([*namespaces, "sh", "-c", REHEARSAL], capture_output=True, text=True)
        if not tried.returncode:
            return namespaces
        said.append(f"  {' '.join(namespaces[:2])} …: {tried.stderr.strip()}")
    raise Problem(NO_NAMESPACES.format(said="\n".join(said), settings=_settings()))


def _settings() -> str:
    """How to allow namespaces where a setting of the kernel forbids them."""
    changes = [
        f"sysctl {name.replace('/', '.')}={allowed}"
        for name, (forbidden, allowed) in SETTINGS.items()
        if (file := Path("/proc/sys", name)).exists() and file.read_text().strip() == forbidden
    ]
    return f" ({', '.join(changes)})" if changes else ""
