"""The image's workers without an engine for containers, and a command that a launcher runs.

    unshare --net --pid --fork --kill-child --mount --mount-proc \\
        python -m tests.cluster.containers [--root IMAGE] -- horovodrun -np 3 -H worker1:1,… CMD

Containers are virtual hosts: launcher, worker1, worker2, worker3, on one network. With ``--root``,
a folder with the image's files, each has a copy of them and runs as the image's user. Without, each
sees this machine's files, with those of docker/ where the image has them. Either way the image's
entry point starts its sshd on every worker, with keys made for this run; the launcher's command,
too, goes through the entry point, once the health check of every worker passes. All see one folder
/output, and in it a hostfile that names the workers, in the words of mpirun.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from virtual_hosts.network import Namespace, Network
from virtual_hosts.problem import run
from virtual_hosts.session import name_hosts

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER, *WORKERS = NAMES = ["launcher", "worker1", "worker2", "worker3"]
PATIENCE = 30.0  # seconds, for an sshd to start
USER = "1000"  # of the image

# This machine's files, and the image's few among them; the user's home is the container's own.
CHECKOUT = """
set -e
sed "s|^root:\\(.*\\):[^:]*:[^:]*$|root:\\1:{home}:/bin/bash|" /etc/passwd > {home}/passwd
mount --bind {home}/passwd /etc/passwd
for folder in /etc/ssh /run /opt; do mount -t tmpfs tmpfs $folder; done
mkdir /run/sshd /opt/venv
mount --bind {venv} /opt/venv
cp {docker}/ssh_config /etc/ssh/ssh_config
cp {docker}/sshd_config /etc/ssh/sshd_horovod
"""
# The image's files below what this container writes, which is gone with its namespaces.
IMAGE = """
set -e
mount -t tmpfs tmpfs {home}
cd {home}
mkdir written work root
mount -t overlay overlay -o lowerdir={image},upperdir=written,workdir=work root
cd root
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount --bind {keys} keys
mount --bind {output} output
cp --remove-destination /etc/hosts etc/hosts
"""


class Container:
    """A virtual host prepared to run the image's entry point."""

    def __init__(self, host: Namespace, folder: Path, image: Path | None) -> None:
        self.host = host
        home = folder / host.name
        home.mkdir()
        places = {
            "docker": ROOT / "docker", "home": home, "image": image, "keys": folder / "keys",
            "output": folder / "output", "venv": sys.prefix,
        }  # fmt: skip
        script = (IMAGE if image else CHECKOUT).format(**places)
        run(*host.inside("sh", "-c", script))
        path = f"/opt/venv/bin:{os.defpath}:/usr/sbin"
        if image:
            change = ["chroot", f"--userspec={USER}:{USER}", str(home / "root")]
            place = ["--chdir", "/home/horovod", "HOME=/home/horovod"]
            self.scripts = Path("/usr/local/bin")
        else:
            change = []
            place = [f"HOME={home}", f"SSH_KEYS={folder / 'keys'}", f"PYTHONPATH={ROOT}"]
            place += ["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"]
            self.scripts = ROOT / "docker"
        settings = ["OMPI_MCA_btl_vader_single_copy_mechanism=none", "PYTHONUNBUFFERED=1"]
        self.enter = [*change, "env", "-i", *place, *settings, f"PATH={path}"]

    def command(self, script: str, *arguments: str) -> list[str]:
        """The command line for a script of the image, ``entrypoint`` or ``health``."""
        return self.host.inside(*self.enter, str(self.scripts / script), *arguments)

    def wait(self) -> None:
        """Until the health check passes."""
        end = time.monotonic() + PATIENCE
        while subprocess.run(self.command("health"), capture_output=True).returncode:
            if time.monotonic() > end:
                sys.exit(f"error: {self.host.name} has not become healthy")
            time.sleep(0.2)


@contextmanager
def cluster(image: Path | None) -> Iterator[tuple[Container, Path]]:
    """A launcher with three healthy workers, and the folder that all see as /output."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="containers-")))
        folder.chmod(0o755)
        for name in ("keys", "output"):
            (folder / name).mkdir()
            if image:
                os.chown(folder / name, int(USER), int(USER))
        slots = [f"{name} slots=1\n" for name in WORKERS]
        (folder / "output" / "hostfile").write_text("".join(slots))
        network = stack.enter_context(Network.create(dict.fromkeys(NAMES, "none")))
        name_hosts(folder, network)
        containers = {name: Container(network.hosts[name], folder, image) for name in NAMES}
        run(*containers[LAUNCHER].command("entrypoint", "keys"))
        for name in WORKERS:
            worker = subprocess.Popen(containers[name].command("entrypoint", "worker"))
            stack.callback(worker.wait)
            stack.callback(worker.kill)
        for name in WORKERS:
            containers[name].wait()
        yield containers[LAUNCHER], folder / "output"


def main() -> int:
    """Returns the status of the launcher's command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, help="folder with the image's files")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    with cluster(options.root) as (launcher, output):
        place = "/output" if options.root else str(output)  # this machine has none
        words = [word.replace("/output", place) for word in options.command]
        launcher.enter += [setting.replace("/output", place) for setting in options.env]
        return subprocess.run(launcher.command("entrypoint", *words)).returncode


if __name__ == "__main__":
    sys.exit(main())
