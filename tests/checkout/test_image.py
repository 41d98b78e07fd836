"""The unit tests, in a folder that holds what the image does.

This is how `make test` runs them, so that what they need and the image lacks is missed at once
and no test runs twice.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout.image import ROOT, copy


def without(folder: Path, *programs: str) -> str:
    """A PATH on which all programs are but these, in ``folder``."""
    folder.mkdir()
    for path in reversed(os.get_exec_path()):
        for program in Path(path).glob("*"):
            (folder / program.name).unlink(missing_ok=True)
            (folder / program.name).symlink_to(program.absolute())
    for name in programs:
        (folder / name).unlink(missing_ok=True)
    return f"{Path(sys.executable).parent}{os.pathsep}{folder}"


@pytest.mark.parametrize(
    "tier", ["not extended", pytest.param("extended", marks=pytest.mark.extended)]
)
def test_unit(tier, tmp_path, capfd):
    copy("test", tmp_path)
    assert not (tmp_path / ".git").exists()
    (ROOT / "output").mkdir(exist_ok=True)
    (tmp_path / "output").symlink_to(ROOT / "output")  # with kernels that were compiled before
    path = without(tmp_path / "bin", "git", "gcc", "g++", "cc", "c++", "make")
    with capfd.disabled():
        print(f"\n\n  tests/unit, {tier}, in a folder like the image's:\n", flush=True)
        command = [sys.executable, "-m", "tests.unit", "-m", tier]
        status = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PATH": path}).returncode
    assert status == 0, "pytest says above what failed; to repeat it: make test T=tests/unit"
