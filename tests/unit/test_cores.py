"""Shares of CPU time for virtual hosts: what is written where; on a kernel see tests/cluster."""

import errno
from pathlib import Path

import pytest
from virtual_hosts.cores import Hierarchy, bandwidth, cores_of
from virtual_hosts.problem import Problem

VERSION_1 = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0"
OTHERS = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0"


def version_2(root: Path, controllers: str) -> str:
    (root / "cgroup.controllers").write_text(f"{controllers}\n")
    return f"cgroup2 {root} cgroup2 rw,nosuid 0 0"


def test_the_hierarchy_with_the_cpu_controller_is_found(tmp_path):
    both = [version_2(tmp_path, "hugetlb"), OTHERS, VERSION_1]
    assert Hierarchy.find("\n".join(both)) == Hierarchy(Path("/sys/fs/cgroup/cpu,cpuacct"), 1)
    unified = version_2(tmp_path, "cpuset cpu io")
    assert Hierarchy.find(f"{OTHERS}\n{unified}") == Hierarchy(tmp_path, 2)


def test_where_there_is_none_the_error_tells_how_to_mount_one(tmp_path):
    with pytest.raises(Problem, match="mount -t cgroup2"):
        Hierarchy.find(f"{OTHERS}\n{version_2(tmp_path, 'cpuset io')}")


def test_limits_in_the_files_of_either_version():
    old = Hierarchy(Path("/"), 1).limits(0.25)
    assert list(old.items()) == [("cpu.cfs_period_us", "10000"), ("cpu.cfs_quota_us", "2500")]
    assert Hierarchy(Path("/"), 2).limits(1.5) == {"cpu.max": "15000 10000"}


@pytest.mark.parametrize("cpus", [0.001, 0.0033, 0.07, 0.1, 0.25, 1, 2.5])
def test_quotas_are_shares_that_the_kernel_accepts(cpus):
    quota, period = bandwidth(cpus)
    assert quota >= 1_000
    assert period <= 1_000_000
    assert quota / period == pytest.approx(cpus, rel=1e-3)


@pytest.mark.parametrize("cpus", [0, -1, 0.0009, float("nan"), float("inf")])
def test_other_shares_are_refused(cpus):
    with pytest.raises(ValueError, match="cores"):
        bandwidth(cpus)


def test_hosts_beyond_one_core_have_all():
    assert cores_of(["h1", "h2"], 1, [0, 3]) == {"h1": [0], "h2": [3]}
    assert cores_of(["h1", "h2"], 1.5, [0, 3]) == {"h1": [0, 3], "h2": [0, 3]}


def test_the_controller_is_enabled_where_version_2_has_it_not_yet(tmp_path):
    control = tmp_path / "cgroup.subtree_control"
    for before, after in (("memory", "+cpu"), ("cpu memory", "cpu memory")):
        control.write_text(before)
        Hierarchy(tmp_path, 2).divide(tmp_path)
        assert control.read_text() == after


@pytest.mark.parametrize(
    ("number", "fix"),
    [(errno.EBUSY, "echo $p > all/cgroup.procs"), (errno.EROFS, "docker run --privileged")],
)
def test_where_the_kernel_refuses_the_error_tells_what_to_do(tmp_path, monkeypatch, number, fix):
    def refuse(*_):
        raise OSError(number, "refused")

    (tmp_path / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(Problem, match="subtree_control = \\+cpu: refused") as caught:
        Hierarchy(tmp_path, 2).divide(tmp_path)
    assert fix in str(caught.value)
