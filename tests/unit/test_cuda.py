"""CUDA kernels without a GPU: what is missing is told, and the simulator runs them all."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from horovod_gqsgd.config import Config
from horovod_gqsgd.cuda_kernels import catalogue, exponential, groups, linear, norm, prepare, reduce
from horovod_gqsgd.cuda_kernels.launch import Launcher, aligned, key_count, tree_of

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environ}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MISSING = """
import horovod_gqsgd.cuda_kernels
from horovod_gqsgd.cuda_kernels import support
print(support.missing())
try:
    support.require()
except support.CudaUnavailableError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (
            "import sys; sys.modules['numba_cuda'] = None",
            "numba-cuda is not installed: pip install ",
        ),
        ("import sys; sys.modules['numba.cuda'] = None", "numba.cuda cannot be imported ("),
        ("", "numba.cuda finds no GPU or no driver for it"),
    ],
)
def test_what_is_missing_is_told(before, reason):
    told, error = python(before + MISSING, CUDA_VISIBLE_DEVICES="").splitlines()
    assert told.startswith(reason)
    assert error == f"CUDA kernels cannot run: {told}"
    assert ("horovod-gqsgd[cuda12]" in told) == bool(before)


def test_adapter_imports_without_cuda_packages():
    code = "import sys; sys.modules['numba_cuda'] = sys.modules['numba.cuda'] = None\n"
    code += "import horovod_gqsgd.torch; print('fine')"
    assert python(code) == "fine\n"


def test_cuda_tensors_without_kernels_are_told_why(monkeypatch):
    from horovod_gqsgd.torch import device

    monkeypatch.setattr(device.support, "missing", lambda: "there is no GPU")
    place = device.Cuda.__new__(device.Cuda)  # its constructor asks torch for a stream
    with pytest.warns(UserWarning, match="quantises CUDA tensors on the host: there is no GPU"):
        assert not place.runs_kernels()


def test_catalogue_lists_every_kernel():
    listed = {kernel.function.__qualname__.split(".")[0] for kernel in catalogue.kernels()}
    modules = (exponential, groups, linear, norm, prepare, reduce)
    made = {
        name
        for module in modules
        for name, value in vars(module).items()
        if hasattr(value, "cache_info") and inspect.unwrap(value).__module__ == module.__name__
    }
    assert listed == made
    names = [kernel.name for kernel in catalogue.kernels()]
    assert len(set(names)) == len(names)


def launches(config: Config, n: int = 2) -> tuple[Launcher, list]:
    calls: list = []
    return Launcher(config, 0, n, lambda *call: calls.append(call), np.empty), calls


def test_unaligned_tensors_go_word_by_word():
    launcher, calls = launches(Config())
    buffer = np.zeros(4 * 4096 + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    words, norms, keys = (np.zeros(k, t) for k, t in ((1024, np.int32), (4, np.float32), (7, "u4")))
    tiles = []
    for offset in (0, 4):
        x = buffer[start + offset :][: 4 * 4096].view(np.float32)
        assert aligned(x) == (offset == 0)
        launcher.encode_linear(x, norms, keys, words)
        tiles.append(calls[-1][3 + 4])
    assert tiles[1] == 0
    assert tiles[0] == aligned(words)


def test_nothing_is_launched_for_nothing():
    launcher, calls = launches(Config(norm=2))
    launcher.local_norms(np.empty(0, np.float32), np.empty(0))
    assert calls == []


def test_keys_beyond_four_billion_elements():
    assert [key_count(size) for size in (0, 1, 2**32, 2**32 + 1)] == [7, 7, 7, 13]


def test_pairwise_depth():
    with pytest.raises(ValueError, match="up to 32768 ranks"):
        tree_of(2**15 + 1)


@pytest.mark.slow
def test_simulator(capsys):
    """Every kernel in a process in which ``numba.cuda`` is the simulator."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/simulator"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
    )  # fmt: skip
    with capsys.disabled():
        print(f"\n  simulator: {done.stdout.splitlines()[-1]}")
    if done.returncode:
        pytest.fail(done.stdout, pytrace=False)
