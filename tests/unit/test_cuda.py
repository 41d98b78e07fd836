"""CUDA kernels without a GPU: what is missing is told, and the simulator runs them all."""

import contextlib
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from horovod_gqsgd.config import Config
from horovod_gqsgd.cuda_kernels import (
    catalogue,
    driver,
    exponential,
    groups,
    linear,
    norm,
    prepare,
    reduce,
)
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
    ("before", "simulator", "reason", "fix"),
    [
        (
            "import sys; sys.modules['numba_cuda'] = None",
            "0",
            "numba-cuda is not installed: pip install ",
            "horovod-gqsgd[cuda12]",
        ),
        (
            "import sys; sys.modules['numba.cuda'] = None",
            "0",
            "numba.cuda cannot be imported (",
            "horovod-gqsgd[cuda12]",
        ),
        ("", "0", "numba.cuda finds no GPU or no driver for it", "install NVIDIA's driver"),
        ("", "1", "NUMBA_ENABLE_CUDASIM puts Numba's simulator in the place", "unset it"),
    ],
)
def test_what_is_missing_is_told(before, simulator, reason, fix):
    environ = {"CUDA_VISIBLE_DEVICES": "", "NUMBA_ENABLE_CUDASIM": simulator}
    told, error = python(before + MISSING, **environ).splitlines()
    assert told.startswith(reason)
    assert fix in told
    assert error == f"CUDA kernels cannot run: {told}"


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_adapter_imports_without_cuda_packages(framework):
    code = "import sys; sys.modules['numba_cuda'] = sys.modules['numba.cuda'] = None\n"
    code += f"import horovod_gqsgd.{framework}; print('fine')"
    assert python(code) == "fine\n"


def test_memory_is_the_framework_s():
    """Numba allocates nothing: its memory would be lost to the framework, and cost a wait."""
    allocators = r"cuda\.(\w+_array\w*|to_device|pinned|mapped)\b"
    for package in ("cuda_kernels", "torch", "tensorflow"):
        [folder] = importlib.import_module(f"horovod_gqsgd.{package}").__path__
        files = [*Path(folder).glob("*.py")]
        assert files
        for path in files:
            assert not re.search(allocators, path.read_text()), path


def test_cuda_tensors_without_kernels_are_told_why(monkeypatch):
    from horovod_gqsgd.torch import device

    monkeypatch.setattr(device.support, "missing", lambda: "there is no GPU")
    place = device.Cuda.__new__(device.Cuda)  # its constructor asks torch for a stream
    with pytest.warns(UserWarning, match="quantises CUDA tensors on the host: there is no GPU"):
        assert not place.runs_kernels()


def nothing(x):
    """A kernel."""


def test_small_grids_are_no_reason_to_warn(monkeypatch):
    """Of our kernels: warnings are errors here, as in `make test-gpu`."""
    from numba import cuda
    from numba.cuda.core.errors import NumbaPerformanceWarning

    setting = "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"
    monkeypatch.delenv(setting, raising=False)
    assert driver.configured(nothing, 1, 256, 0) is driver.configured(nothing, 1, 256, 0)
    with pytest.warns(NumbaPerformanceWarning, match="Grid size 1 "):
        cuda.jit(nothing)[1, 256]
    monkeypatch.setenv(setting, "1")
    with pytest.warns(NumbaPerformanceWarning, match="Grid size 2 "):
        driver.configured(nothing, 2, 256, 0)


def test_a_stream_is_one_object(monkeypatch):
    """By which Numba, and `driver.configured`, know a grid again."""
    monkeypatch.setattr("numba.cuda.external_stream", lambda handle: object())
    driver.stream_at.cache_clear()
    assert driver.stream_at(0, 0) is driver.stream_at(0, 0)
    assert len({driver.stream_at(*which) for which in ((0, 0), (7, 0), (0, 1))}) == 3
    driver.stream_at.cache_clear()


class Stream:
    """Remembers what it was told to wait for."""

    def __init__(self):
        self.awaited = []

    def wait_stream(self, other):
        self.awaited.append(other)


@pytest.mark.parametrize(("setting", "awaited"), [("0", []), ("1", ["default stream"])])
def test_results_that_are_not_there_yet(monkeypatch, setting, awaited):
    """Horovod may say that it is done when only torch's default stream waits for the result."""
    import torch

    from horovod_gqsgd.torch import device

    monkeypatch.setenv("HOROVOD_ENABLE_ASYNC_COMPLETION", setting)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _device: "default stream")
    place, stream = device.Cuda.__new__(device.Cuda), Stream()
    place.device, place.stream = torch.device("cuda", 0), stream  # type: ignore[assignment]
    with place.active():
        assert stream.awaited == awaited


def test_copies_of_the_simulated_gpu_arrive_late():
    """So that a header that is read too early fails the tests of `tests/parallel/cuda`."""
    import torch

    from tests.parallel.cuda.simulated import POISON, Simulated

    place = Simulated()
    notice, header = place.pinned(2), torch.tensor([1, 2], dtype=torch.int32)
    notice.copy_(header, non_blocking=True)
    copied = place.event()
    header.zero_()
    while not copied.query():
        assert notice.numpy().tolist() == [POISON, POISON]
    assert notice.numpy().tolist() == [1, 2]


def test_a_stage_that_fails_waits_for_its_kernels(monkeypatch):
    import tensorflow as tf

    from horovod_gqsgd.tensorflow import cuda, device

    ended = []

    class Place:
        def finish(self):
            ended.append("finished")

    class Failing(cuda.OnDevice):
        def __init__(self):
            pass

        def norm(self, gradient):
            pass

        def cuda_norm(self, place, gradient):
            raise RuntimeError("out of memory")

    monkeypatch.setattr(device, "of", lambda _tensors: Place())
    failing = Failing()
    with pytest.raises(RuntimeError, match="out of memory"):
        failing.stage("norm", [tf.zeros(3)], [tf.float32])
    assert ended == ["finished"]


def test_a_stream_is_awaited_in_its_context(monkeypatch):
    from horovod_gqsgd.tensorflow import device

    order = []

    class Gpu:
        def __enter__(self):
            order.append("enter")

        def __exit__(self, *_error):
            order.append("leave")

    class Ours:
        def synchronize(self):
            order.append("synchronize")

    monkeypatch.setattr("numba.cuda.gpus", [None, Gpu()])
    monkeypatch.setattr(device, "_stream", lambda _ordinal: Ours())
    place = device.Cuda("GPU:0")
    place.finish()
    assert order == []
    place.busy, place.held = 1, ["memory"]
    place.finish()
    assert order == ["enter", "synchronize", "leave"]
    assert (place.busy, place.held) == (None, [])


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


@pytest.mark.extended
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
