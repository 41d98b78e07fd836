"""Virtual hosts: what crosses their links, and that nothing of them remains."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from virtual_hosts.cores import hierarchy
from virtual_hosts.problem import Problem, isolation

from tests.parallel.job import ENVIRONMENT, ROOT, missing

CLUSTER = [sys.executable, str(ROOT / "benchmarks" / "cluster.py")]
# A command that tells which network namespace it runs in, in a file named after its host, and which
# control groups.
WHERE = 'cat /proc/self/cgroup > "$(hostname).groups"; readlink /proc/self/ns/net > "$(hostname)"'
# A command that computes for two seconds, and tells what of that it got.
BUSY = """
import json, os, pathlib, time
start, cpu = time.monotonic(), time.process_time()
while (end := time.monotonic()) < start + 2:
    pass
cores, taken = len(os.sched_getaffinity(0)), time.process_time() - cpu
told = json.dumps({"start": start, "end": end, "cpu": taken, "cores": cores})
pathlib.Path(f"{os.uname().nodename}-{os.getpid()}.json").write_text(told)
"""
# Before a command: it runs as a user without any privilege, and as nobody who may make namespaces.
USER = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
NO_NAMESPACES = [
    "unshare", "--user", "--map-root-user", "sh", "-c",
    "echo 0 > /proc/sys/user/max_user_namespaces && "
    'exec setpriv --bounding-set -all --inh-caps -all "$@"', "sh",
]  # fmt: skip
PLAIN = 12_000_000  # bytes of the gradient that `exchange` reduces
CHATTER = 200_000  # bytes a second by which ranks keep in touch (docs/cluster.md: 160,000)
PATIENCE = 60.0  # seconds, for what takes five on an idle machine

pytestmark = pytest.mark.parallel


@pytest.fixture
def needs():
    """Skip where virtual hosts cannot be made."""
    try:
        isolation()
    except Problem as problem:
        pytest.skip(str(problem))


@pytest.fixture
def needs_groups(needs):
    """Skip where hosts cannot have a share of CPU time."""
    if os.geteuid():
        pytest.skip("control groups for shares of CPU time belong to root")
    try:
        hierarchy()
    except Problem as problem:
        pytest.skip(str(problem))


@pytest.fixture(params=[[], ["--cpus", "0.5"]], ids=["all cores", "a share"])
def cpus(request, needs):
    """Options for hosts that share all cores, and for such with a share each."""
    if request.param:
        request.getfixturevalue("needs_groups")
    return request.param


def start(folder: Path, *arguments: str, before: Sequence[str] = ()) -> subprocess.Popen:
    """A cluster whose ranks run in ``folder``, with temporary files in ``folder``/tmp."""
    (folder / "tmp").mkdir(exist_ok=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path, "TMPDIR": str(folder / "tmp")}
    return subprocess.Popen(
        [*before, *CLUSTER, *arguments],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen, status: int = 0) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == status, output
    return output


def until(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within our patience."""
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def networks_in_use() -> set[str]:
    """Of all processes of the machine."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(str((process / "ns" / "net").readlink()))
        except OSError:  # it has just ended
            continue
    return found


def told(folder: Path, *hosts: str) -> set[str]:
    """The network namespaces of hosts on which `WHERE` ran."""
    return {(folder / host).read_text().strip() for host in hosts}


def groups(folder: Path, *hosts: str) -> set[Path]:
    """The control groups for CPU time that `WHERE` ran in, of those that clusters make."""
    lines = [line for host in hosts for line in (folder / f"{host}.groups").read_text().split()]
    names = {line.split(":", 2)[2].lstrip("/") for line in lines if "/virtual-hosts-" in line}
    return {hierarchy().root / name for name in names}


def nothing_left(folder: Path, *hosts: str) -> bool:
    files = [path for path in (folder / "tmp").iterdir() if path.name.startswith("cluster-")]
    files += [path for group in groups(folder, *hosts) for path in (group, group.parent)
              if path.exists()]  # fmt: skip
    return not files and not told(folder, *hosts) & networks_in_use()


def test_bytes_on_the_wire_and_the_specification_at_200_megabits(needs, tmp_path):
    account = tmp_path / "account.json"
    job = start(
        tmp_path, "--hosts", "2", "--rate", "200mbit", "--host-rate", "h2=100mbit",
        "--json", str(account), "--", "python", "-m", "tests.cluster.exchange", str(tmp_path),
        before=USER,
    )  # fmt: skip
    output = finish(job)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [(rank["host"], rank["size"]) for rank in ranks] == [("h1", 2), ("h2", 2)]
    for rank in ranks:
        sent = rank["sent"]
        assert 1 <= sent["none"] / PLAIN < 1.06, "a ring of two sends the tensor once"
        assert sent["8-bit"] <= 0.27 * sent["none"]
        assert sent["5-bit"] <= 0.18 * sent["none"]
        assert sent["exponential 4-bit"] <= 0.14 * sent["none"]
    found = json.loads(account.read_text())
    assert (found["status"], found["launcher"]) == (0, "gloo")
    assert [host["rate"] for host in found["hosts"].values()] == ["200mbit", "100mbit"]
    for host, rank in zip(("h1", "h2"), ranks, strict=True):
        assert sum(rank["sent"].values()) <= found["hosts"][host]["sent"]
        assert f"{found['hosts'][host]['sent']:,}" in output
    least = PLAIN * 8 / 100e6
    assert found["seconds"] > least, "the slower link needs that long for the plain tensor alone"


@pytest.mark.extended
def test_the_bound_of_a_contest_sends_what_the_compressor_sends(needs, tmp_path):
    names = ["gqsgd", "gqsgd:bits=5", "gqsgd:levels=exponential,bits=4"]
    names += [name.replace("gqsgd", "bare") for name in names]
    turns = ["--rounds", "1", "--steps", "2", "--json", "result.json"]
    script = [sys.executable, str(ROOT / "benchmarks" / "contest.py"), *turns]
    hosts = ["--hosts", "2", "--rate", "1gbit"]
    finish(start(tmp_path, *hosts, "--", *script, "--contenders", "alone", *names))
    results = json.loads((tmp_path / "result.json").read_text())
    alone = results["alone"]
    assert alone["sent"] < 0.01 * results["gqsgd"]["sent"] + CHATTER * max(alone["seconds"])
    for name in names[:3]:
        bare, ours = results[name.replace("gqsgd", "bare")], results[name]
        in_touch = CHATTER * max(bare["seconds"] + ours["seconds"])
        assert abs(bare["sent"] - ours["sent"]) < 0.03 * ours["sent"] + in_touch
        # the headers that only the link sees: 66 bytes of every 1,514
        assert ours["sent"] <= ours["carried"] < 1.06 * ours["sent"] + in_touch
        assert ours["encode"] > 0 == bare["encode"]


@pytest.mark.extended
def test_two_clusters_at_once_with_either_launcher(needs, tmp_path):
    reason = missing("mpi")
    launchers = ["gloo", "gloo" if reason else "mpi"]
    jobs = []
    for i, launcher in enumerate(launchers):
        folder = tmp_path / str(i)
        folder.mkdir()
        command = ["sh", "-c", f"{WHERE}; sleep 5"]
        options = ["--hosts", "2", "--slots", "2", "--launcher", launcher]
        jobs.append(start(folder, *options, "--", *command))
    for job in jobs:
        finish(job)
    first, second = (told(tmp_path / str(i), "h1", "h2") for i in range(2))
    assert len(first | second) == 4, "every host has a network of its own"
    assert all(nothing_left(tmp_path / str(i), "h1", "h2") for i in range(2))


@pytest.mark.extended
@pytest.mark.parametrize("launcher", ["gloo", "mpi"])
def test_ranks_of_a_host_have_its_share_of_cpu_time_together(needs_groups, tmp_path, launcher):
    if reason := launcher == "mpi" and missing("mpi"):
        pytest.skip(reason)
    options = ["--hosts", "2", "--slots", "2", "--cpus", "0.5", "--launcher", launcher]
    command = ["sh", "-c", f"{WHERE}; exec python -c '{BUSY}'"]
    finish(start(tmp_path, *options, "--json", "account.json", "--", *command))
    assert json.loads((tmp_path / "account.json").read_text())["cpus"] == 0.5
    assert {group.name for group in groups(tmp_path, "h1", "h2")} == {"h1", "h2"}
    for host in ("h1", "h2"):
        ranks = [json.loads(path.read_text()) for path in tmp_path.glob(f"{host}-*.json")]
        assert [rank["cores"] for rank in ranks] == [1, 1]
        wall = max(rank["end"] for rank in ranks) - min(rank["start"] for rank in ranks)
        assert sum(rank["cpu"] for rank in ranks) < 0.55 * wall + 0.05
    assert nothing_left(tmp_path, "h1", "h2")


@pytest.mark.extended
def test_failure_of_the_job_is_its_status_and_nothing_remains(cpus, tmp_path):
    script = f"{WHERE}; sleep 1; exit 3"
    job = start(tmp_path, "--hosts", "2", *cpus, "--", "sh", "-c", script)
    assert "status 1" in finish(job, status=1), "horovodrun's status for any failure"
    assert len(groups(tmp_path, "h1", "h2")) == (2 if cpus else 0)
    assert nothing_left(tmp_path, "h1", "h2")


# ranks in sessions of their own, which ignore what the launcher may send them
STUBBORN = ["sh", "-c", f"trap '' TERM INT HUP; {WHERE}; setsid sleep 1000"]


def started(folder: Path, *options: str, before: Sequence[str] = ()) -> subprocess.Popen:
    """A cluster of two hosts on which `STUBBORN` runs."""
    job = start(folder, "--hosts", "2", *options, "--", *STUBBORN, before=before)
    assert until(lambda: (folder / "h1").exists() and (folder / "h2").exists())
    time.sleep(0.5)
    return job


@pytest.mark.extended
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_nothing_remains_of_an_interrupted_job(cpus, tmp_path, number, status):
    job = started(tmp_path, *cpus, before=[] if cpus else USER)
    assert len(groups(tmp_path, "h1", "h2")) == (2 if cpus else 0)
    job.send_signal(number)
    output = finish(job, status)
    assert until(lambda: nothing_left(tmp_path, "h1", "h2")), output


@pytest.mark.extended
def test_what_remains_where_all_was_killed_at_once_goes_with_the_next_cluster(
    needs_groups, tmp_path
):
    for name in ("killed", "alive", "next"):
        (tmp_path / name).mkdir()
    killed = started(tmp_path / "killed", "--cpus", "0.5")
    killed.send_signal(signal.SIGSTOP)  # so that it does not see its child end
    [child] = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    killed.kill()
    finish(killed, -9)
    assert until(lambda: not told(tmp_path / "killed", "h1", "h2") & networks_in_use())
    left = groups(tmp_path / "killed", "h1", "h2")
    assert all(group.exists() for group in left)
    alive = started(tmp_path / "alive", "--cpus", "0.5")
    try:
        assert not any(path.exists() for group in left for path in (group, group.parent))
        finish(start(tmp_path / "next", "--hosts", "2", "--cpus", "0.5", "--", "true"))
        used = groups(tmp_path / "alive", "h1", "h2")
        assert all(group.exists() for group in used), "what is in use is not swept away"
    finally:
        alive.terminate()
        finish(alive, 143)
    assert nothing_left(tmp_path / "alive", "h1", "h2")


@pytest.mark.extended
def test_a_cable_is_cut_and_restored(needs, tmp_path):
    carrier = "/sys/class/net/eth0/carrier"
    wait = f"until grep -q {{}} {carrier}; do sleep 0.1; done"
    script = (
        f"[ $(hostname) = h1 ] && exit; {wait.format(0)}; echo h2 is alone; "
        f"{wait.format(1)}; echo h2 is back"
    )
    options = ["--hosts", "2", "--cut", "h2@8", "--restore", "h2@14"]
    output = finish(start(tmp_path, *options, "--", "sh", "-c", script))
    said = ("h2 cut after 8", "h2 is alone", "h2 restored after 14", "h2 is back")
    places = [output.find(text) for text in said]
    assert -1 not in places, output
    assert places == sorted(places), output


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (NO_NAMESPACES, "sysctl user.max_user_namespaces=15000"),
        (NO_NAMESPACES, "docker run --privileged (it takes SYS_ADMIN and NET_ADMIN)"),
        (["env", "PATH=/nowhere"], "is not on PATH: apt-get install "),
    ],
)
def test_what_is_missing_is_told(needs, tmp_path, before, message):
    command = [*before, *CLUSTER, "--hosts", "2", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [("umount -l", "mount -t cgroup2"), ("mount -o remount,bind,ro", "docker run --privileged")],
)
def test_what_is_missing_for_shares_of_cpu_time_is_told(needs_groups, change, message):
    script = f'{change} {hierarchy().root} && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *CLUSTER]
    options = ["--hosts", "2", "--cpus", "0.5", "--", "true"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "2", "--rate", "fast"], "'fast' is no rate: e.g. 200mbit, 1gbit or none"),
        (["--hosts", "2", "--host-rate", "h2"], "e.g. h2=50mbit"),
        (["--hosts", "2", "--host-rate", "h3=50mbit"], "there is no host 'h3'"),
        (["--hosts", "2", "--cut", "h2"], "e.g. h2@30"),
        (["--hosts", "2", "--cpus", "0"], "'0' is no share of CPU time: e.g. 0.25"),
        (["--hosts", "2", "--cpus", "-1"], "'-1' is no share of CPU time: e.g. 0.25"),
        (["--hosts", "2", "--cpus", "half"], "'half' is no share of CPU time: e.g. 0.25"),
        (["--hosts", "2", "--cpus", "nan"], "'nan' is no share of CPU time: e.g. 0.25"),
        (["--hosts", "0"], "at least one host"),
    ],
)
def test_wrong_arguments_are_told(arguments, message):
    done = subprocess.run([*CLUSTER, *arguments, "--", "true"], capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr
