"""The Horovod build script: keys, the compiler shim, and a fix for every foreseen failure."""

import dataclasses
import os
import re
import stat
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest
from horovod_build import preflight, target
from horovod_build.cache import build_folder, cached_wheel, default_cache, exclusive, store
from horovod_build.compile import build_environment, shim_text
from horovod_build.diagnose import CAUSES, diagnose, error_lines
from horovod_build.pip import Pip
from horovod_build.problem import Problem
from horovod_build.progress import read_line, run_logged
from horovod_build.target import Target, find_target, version_tuple

TARGET = Target("cpython-311", "linux-x86_64-glibc-2.36", "2.13.0", "2.15.1", "openmpi-4.1.4")
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "build_horovod.py"


def program(folder: Path, name: str, text: str) -> Path:
    """An executable shell script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# -- what a wheel is for


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("horovod", "0.28.2"), ("python", "cpython-312"), ("platform", "linux-aarch64"),
        ("torch", "2.13.1"), ("torch", None), ("tensorflow", None), ("mpi", None),
        ("mpi", "openmpi-5.0.0"), ("settings", (("HOROVOD_GPU_OPERATIONS", "NCCL"),)),
        ("recipe", 99),
    ],
)  # fmt: skip
def test_every_field_makes_another_key(field, value):
    assert dataclasses.replace(TARGET, **{field: value}).key != TARGET.key


def test_build_settings_are_in_the_key_and_run_time_settings_are_not(monkeypatch):
    plain = find_target(None, None, "no")
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "1")
    monkeypatch.setenv("HOROVOD_GQSGD_BITS", "4")
    assert find_target(None, None, "no").key == plain.key
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    assert find_target(None, None, "no").key != plain.key


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((True, None, "no"), "torch is not installed"),
        ((None, True, "no"), "TensorFlow is not installed"),
        ((None, None, "no"), "neither torch nor TensorFlow"),
    ],
)
def test_missing_frameworks_are_named(options, message, monkeypatch):
    monkeypatch.setattr(target, "installed", lambda *names: None)
    with pytest.raises(Problem, match=message) as problem:
        find_target(*options)
    assert "pip install" in problem.value.fix


def test_mpi_is_taken_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_target(None, None, "auto").mpi is None
    with pytest.raises(Problem, match="no mpicxx"):
        find_target(None, None, "yes")
    program(tmp_path, "mpicxx", "true")
    program(tmp_path, "mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    assert find_target(None, None, "auto").mpi == "openmpi-4.1.4"
    assert find_target(None, None, "no").mpi is None


def test_versions():
    assert version_tuple("2.13.0+cpu") == (2, 13, 0)
    assert version_tuple("4.1.4rc1") == (4, 1, 4)
    assert dataclasses.replace(TARGET, torch="2.4.0").cxx_standard == 17
    assert TARGET.cxx_standard == 20


# -- the compiler shim


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ("-std=c++14", "-std=c++20"),
        ("-std=gnu++14", "-std=gnu++20"),
        ("-std=c++17", "-std=c++17"),  # TensorFlow's part: leave it
        ("-std=c++11", "-std=c++11"),  # Gloo's
        ("-DNAME=a b", "-DNAME=a b"),
        ("-DX=-std=c++14", "-DX=-std=c++14"),
    ],
)
def test_shim_raises_the_standard_and_nothing_else(given, passed, tmp_path):
    real = program(tmp_path, "real g++", 'for a in "$@"; do echo "$a"; done')
    shim = tmp_path / "c++"
    shim.write_text(shim_text([str(real), "-pipe"], 20))
    shim.chmod(0o755)
    out = subprocess.run([shim, given, "x.cc"], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["-pipe", passed, "x.cc", "-g0"]


def test_environment_decides_for_the_user_only_what_it_must(monkeypatch, tmp_path):
    monkeypatch.setenv("HOROVOD_WITHOUT_PYTORCH", "1")
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    monkeypatch.setenv("MAKEFLAGS", "-j1")
    env = build_environment(
        dataclasses.replace(TARGET, tensorflow=None, mpi=None), tmp_path, tmp_path / "c++", None
    )
    assert "HOROVOD_WITHOUT_PYTORCH" not in env
    flags = ["WITH_PYTORCH", "WITH_GLOO", "WITHOUT_TENSORFLOW", "WITHOUT_MPI", "WITHOUT_MXNET"]
    assert all(env[f"HOROVOD_{flag}"] == "1" for flag in flags)
    assert env["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert env["MAKEFLAGS"] == "-j1"
    monkeypatch.setenv("MAKEFLAGS", "")  # what a surrounding make leaves: Horovod would take -j8
    env = build_environment(TARGET, tmp_path, tmp_path / "c++", None)
    assert re.fullmatch(r"-j[1-9]\d*", env["MAKEFLAGS"])


def test_jobs_fit_the_memory():
    assert preflight.parallel_jobs(cores=16, memory=9 << 30) == 4
    assert preflight.parallel_jobs(cores=2, memory=1 << 28) == 1


# -- what is found before the build


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(Problem, match=r"no C\+\+ compiler") as problem:
        preflight.check_compiler(TARGET)
    assert "apt-get install g++" in problem.value.fix


def test_compiler_too_old(monkeypatch, tmp_path):
    old = program(tmp_path, "g++-8", "echo 'g++ 8.3.0'; test \"$1\" = --version")
    monkeypatch.setenv("CXX", str(old))
    with pytest.raises(Problem, match=r"cannot compile C\+\+20.*g\+\+ 8\.3\.0") as problem:
        preflight.check_compiler(TARGET)
    assert "CXX=" in problem.value.fix


def test_no_python_headers(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(Problem, match=r"Python\.h") as problem:
        preflight.check_python()
    assert "python3-dev" in problem.value.fix


def test_tensorflow_too_new_or_with_numpy_2():
    with pytest.raises(Problem, match="Keras 2"):
        preflight.check_frameworks(dataclasses.replace(TARGET, tensorflow="2.16.1"), "1.26.4")
    with pytest.raises(Problem, match="NumPy 1") as problem:
        preflight.check_frameworks(TARGET, "2.1.0")
    assert "numpy<2" in problem.value.fix
    preflight.check_frameworks(dataclasses.replace(TARGET, tensorflow=None), "2.1.0")


def test_no_room(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "DISK_NEEDED", 1 << 62)
    with pytest.raises(Problem, match="GiB free"):
        preflight.check_disk(tmp_path)


def test_missing_cmake_is_no_version(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HOROVOD_CMAKE", raising=False)
    assert preflight.cmake_version() == ()
    program(tmp_path, "cmake", "echo cmake version 4.1.0")
    assert preflight.cmake_version() == (4, 1, 0)


def test_script_fails_with_the_message_alone(tmp_path):
    env = {**os.environ, "PATH": str(tmp_path), "HOROVOD_WHEEL_CACHE": str(tmp_path / "cache")}
    env.pop("CXX", None)
    done = subprocess.run([sys.executable, SCRIPT], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "error: no C++ compiler" in done.stderr
    assert "fix: apt-get install g++" in done.stderr
    assert "Traceback" not in done.stderr


# -- what is found in the log of a failed one


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("g++: fatal error: Killed signal terminated program cc1plus", "out of memory"),
        ("/tmp/ccX.s: write error: No space left on device", "disk is full"),
        ("#error C++17 or later compatible compiler is required to use PyTorch.", r"C\+\+ mode"),
        ("#error You need C++20 to compile PyTorch: requires C++20", r"C\+\+ mode"),
        ("  Compatibility with CMake < 3.5 has been removed from CMake.", "CMake is too new"),
        ("adapter.h:1:10: fatal error: Python.h: No such file or directory", "C headers"),
        ("common.h:5: fatal error: mpi.h: No such file or directory", "MPI's headers"),
        ("-- Could NOT find MPI (missing: MPI_CXX_FOUND)", "MPI's headers"),
        ("-- Could NOT find NCCL (missing: NCCL_INCLUDE_DIR)", "NCCL"),
        ("-- Could NOT find CUDAToolkit (missing: CUDAToolkit_INCLUDE_DIR)", "the CUDA toolkit, "),
        ("this PyTorch installation does not support CUDA.", "torch is a CPU build or finds no"),
        ("Could NOT find Tensorflow (missing: Tensorflow_LIBRARIES)", "Tensorflow does not import"),
        ("ModuleNotFoundError: No module named 'cffi'", "Python module cffi"),
        ("socket.gaierror: Temporary failure in name resolution", "cannot be reached"),
        ("ERROR: No matching distribution found for horovod==0.28.1", "no horovod==0.28.1"),
    ],
)
def test_causes_are_recognised(line, cause):
    found = diagnose(f"some\nlines before\n{line}\nmake: *** [all] Error 2\n")
    assert found is not None
    assert re.search(cause, found[0])
    assert "{" not in found[1]


def test_every_cause_has_a_fix():
    assert all(fix for _, _, fix in CAUSES)
    assert diagnose("all is well") is None
    # what torch says on every machine that has a toolkit and no GPU
    assert diagnose("No CUDA runtime is found, using CUDA_HOME='/usr/local/cuda'") is None


def test_error_lines_skip_what_only_repeats_them():
    log = (
        "ok\nx.cc:3: error: no type named y\nmake: *** [x.o] Error 1\nERROR: Failed building wheel"
    )
    assert error_lines(log) == ["x.cc:3: error: no type named y"]
    assert error_lines("one\ntwo\nthree", count=2) == ["two", "three"]


def test_no_network(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    pip = Pip(tmp_path / "log")
    with pytest.raises(Problem, match="downloading failed: the package index cannot be") as problem:
        pip("downloading", "download", "--no-deps", "--dest", str(tmp_path), "horovod==0.28.1")
    assert "network" in problem.value.fix
    assert str(tmp_path / "log") in problem.value.what


# -- progress and the cache


def test_progress_is_read_from_the_output():
    phase = read_line("Collecting torch==2.13.0", "running")
    assert phase == "getting torch"
    assert read_line("anything else", phase) == phase
    assert read_line("-- Found Pytorch: 2.13.0", phase) == "configuring: torch found"
    assert read_line("[100%] Built target pytorch", phase) == "compiling 100%"


def test_output_goes_to_the_log_and_the_status_comes_back(tmp_path, capfd):
    log = tmp_path / "log"
    assert run_logged(["sh", "-c", "echo out; echo err >&2; exit 3"], os.environ, log, "x") == 3
    assert log.read_text().splitlines()[1:] == ["out", "err"]
    assert "x: failed with status 3" in capfd.readouterr().err


def test_cache_is_outside_of_any_checkout(monkeypatch, tmp_path):
    monkeypatch.delenv("HOROVOD_WHEEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "horovod-wheels"
    monkeypatch.setenv("HOROVOD_WHEEL_CACHE", str(tmp_path / "other"))
    assert default_cache() == tmp_path / "other"


def test_interrupted_build_leaves_no_wheel_and_no_folder(tmp_path):
    (tmp_path / ".building-killed-earlier").mkdir()

    def build() -> None:
        with build_folder(tmp_path) as folder:
            (folder / "horovod-half.whl").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    assert list(tmp_path.iterdir()) == []
    assert cached_wheel(tmp_path, TARGET) is None


def test_finished_wheel_is_found_again_and_only_for_its_target(tmp_path):
    for content in ("first", "built again"):
        with build_folder(tmp_path) as folder:
            finished = folder / "finished"
            finished.mkdir()
            (finished / "horovod-0.28.1.whl").write_text(content)
            wheel = store(tmp_path, TARGET, finished)
        assert cached_wheel(tmp_path, TARGET) == wheel
        assert wheel.read_text() == content
    assert cached_wheel(tmp_path, dataclasses.replace(TARGET, tensorflow=None)) is None


def test_two_at_once_wait_with_a_message(tmp_path):
    said: list[str] = []
    second_in = threading.Event()

    def second() -> None:
        with exclusive(tmp_path / "lock", said.append):
            second_in.set()

    with exclusive(tmp_path / "lock", said.append):
        thread = threading.Thread(target=second)
        thread.start()
        assert not second_in.wait(0.3)
        assert len(said) == 1
        assert "waiting" in said[0]
    thread.join(10)
    assert second_in.is_set()
