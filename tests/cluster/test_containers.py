"""What compose and the MPI operator start, across virtual hosts with the image's sshd.

With ``IMAGE_ROOT``, a folder with the image's files, in those: `make image-test`.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from virtual_hosts.problem import Problem, isolation

from tests.parallel.job import ROOT, missing

pytestmark = pytest.mark.parallel

IMAGE = [f"--root={root}"] if (root := os.environ.get("IMAGE_ROOT")) else []
WHERE = """
import socket, horovod.torch as hvd
hvd.init()
print(f"at {socket.gethostname()} {hvd.size()}")
"""


@pytest.fixture(autouse=True)
def _needs():
    """Skip where virtual hosts or sshd are missing."""
    if os.geteuid():
        pytest.skip("sshd changes users, which only root may")
    try:
        isolation()
    except Problem as problem:
        pytest.skip(str(problem))
    if not Path("/usr/sbin/sshd").exists() or not shutil.which("ssh"):
        pytest.skip("no sshd or ssh: apt-get install openssh-server openssh-client")


def launch(*command: str, env: dict[str, str] | None = None, status: int = 0) -> str:
    """What the launcher says of ``command``; it has to end with ``status``."""
    settings = [f"--env={name}={value}" for name, value in (env or {}).items()]
    script = ["-m", "tests.cluster.containers", *IMAGE, *settings, "--", *command]
    done = subprocess.run(
        [*isolation(), sys.executable, *script],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
        stdin=subprocess.DEVNULL, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}",
                                       "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def service(name: str) -> list[str]:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return shlex.split(compose["services"][name]["command"])


@pytest.mark.extended
def test_the_compose_file_runs_the_demo_on_three_workers():
    assert [service(f"worker{i}") for i in (1, 2, 3)] == [["worker"]] * 3
    assert service("keys") == ["keys"]
    output = launch(*service("launcher"), "--steps", "2", env={"COLUMNS": "120"})
    assert "Network: worker1, worker2, worker3, TCP paced to 200 Mb/s" in output
    assert "GlobalQSGD(bits=5)" in output
    assert "demo.png" in output


@pytest.fixture
def mpi():
    """Skip where there is none."""
    if not IMAGE and (reason := missing("mpi")):
        pytest.skip(reason)


@pytest.mark.extended
def test_the_mpi_job_trains_as_its_operator_starts_it(mpi):
    job = yaml.safe_load((ROOT / "deploy" / "mpijob.yaml").read_text())["spec"]
    launcher, worker = (
        job["mpiReplicaSpecs"][kind]["template"]["spec"]["containers"][0]
        for kind in ("Launcher", "Worker")
    )
    assert worker["args"] == ["worker"]
    env = {  # what the operator sets
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/output/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }
    assert "accuracy" in launch(*launcher["args"], "--epochs", "1", env=env)


@pytest.mark.extended
def test_horovodrun_reaches_every_host_over_mpi(mpi):
    hosts = "worker1:1,worker2:1,worker3:1"
    output = launch("horovodrun", "--mpi", "-np", "3", "-H", hosts, "python", "-c", WHERE)
    assert all(f"at worker{i} 3" in output for i in (1, 2, 3)), output


@pytest.mark.extended
def test_a_stranger_is_not_let_in():
    script = (
        "ssh worker1 true && rm ~/.ssh/id_* && ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519"
        " && ssh -o BatchMode=yes worker1 true"
    )
    assert "Permission denied (publickey)" in launch("bash", "-c", script, status=255)


def test_a_worker_without_keys_says_what_to_do(tmp_path):
    done = subprocess.run(
        [ROOT / "docker" / "entrypoint", "worker"], capture_output=True, text=True,
        env={"SSH_KEYS": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 1
    assert f"no key pair in {tmp_path}: mount a folder or volume there" in done.stderr
    assert not [*tmp_path.iterdir()]
