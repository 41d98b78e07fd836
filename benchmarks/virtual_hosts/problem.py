"""What keeps a cluster from being made, and what it needs."""

import os
import shutil
import subprocess

TOOLS = {
    **dict.fromkeys(("ip", "tc"), "iproute2"),
    **dict.fromkeys(("unshare", "nsenter", "taskset"), "util-linux"),
}


class Problem(Exception):
    """Told to the user as it is, without a traceback."""


def run(*command: str) -> str:
    """Standard output of a command; `Problem` with what it said where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Problem(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def check_needs() -> None:
    """Root, the tools, and a kernel or container that lets root make namespaces."""
    if os.geteuid() != 0:
        raise Problem("virtual hosts need root: they are network namespaces; try sudo")
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            raise Problem(f"{tool} is not on PATH: apt-get install {package} (Debian, Ubuntu)")
    try:
        run("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "true")
    except Problem as problem:
        raise Problem(
            f"{problem}\n  a container needs the capabilities SYS_ADMIN and NET_ADMIN "
            "(docker run --privileged)"
        ) from None
