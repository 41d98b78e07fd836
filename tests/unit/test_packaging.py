"""The package installs under its names and imports next to nothing."""

import importlib
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import horovod_gqsgd

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["torch", "tensorflow", "keras", "horovod", "numba", "cupy", "cuda"]


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_import_brings_no_framework_no_numba_no_cuda():
    # What Python itself has imported by then, some packages' .pth files among it, is not ours.
    code = (
        "import sys; before = {*sys.modules}; import horovod_gqsgd; print(*{*sys.modules} - before)"
    )
    modules = run(code).split()
    assert "horovod_gqsgd" in modules
    assert not {name.split(".")[0] for name in modules} & set(HEAVY)


def test_import_is_fast():
    code = (
        "import time; t = time.perf_counter(); import horovod_gqsgd; print(time.perf_counter()-t)"
    )
    assert min(float(run(code)) for _ in range(5)) < 0.2


@pytest.mark.parametrize("name", ["cuda_kernels", "horovod_build"])
def test_folders_of_the_checkout_install_inside_the_package(name):
    assert importlib.import_module(f"horovod_gqsgd.{name}").__doc__


def test_version_and_extras():
    package = metadata.metadata("horovod-gqsgd")
    assert package["Version"] == horovod_gqsgd.__version__
    extras = {"torch", "tensorflow", "cuda12", "cuda13", "dev"}
    assert set(package.get_all("Provides-Extra", [])) == extras
    # Horovod needs to be built first, so the base install must not pull it in.
    base = [need for need in package.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert sorted(re.split(r"[^\w-]", need)[0] for need in base) == ["numba", "numpy"]


def test_environment_is_the_pinned_one():
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    found: dict[str, str] = {}
    for each in metadata.distributions():  # the first of a name; setuptools brings others
        found.setdefault(each.metadata["Name"].lower().replace("_", "-"), each.version)
    differ = {
        name: (pin, found[name])
        for name, pin in pins.items()
        if name in found and found[name].split("+")[0] != pin
    }
    assert not differ, "run `make setup`"
