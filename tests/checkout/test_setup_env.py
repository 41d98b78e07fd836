"""Set-up of .venv: what it is made from, what was left half-done, who may use it."""

import subprocess
import sys
from pathlib import Path

import pytest
import setup_env

SCRIPT = Path(setup_env.__file__)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of its own: nothing installed, no virtualenv."""
    (tmp_path / "constraints.txt").write_text("numpy==1.26.4\n")
    (tmp_path / "setup.py").write_text("")
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    monkeypatch.setattr(setup_env, "CONSTRAINTS", tmp_path / "constraints.txt")
    monkeypatch.setattr(setup_env, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(setup_env, "VENV_PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(setup_env, "READY", tmp_path / ".venv" / "ready")
    return tmp_path


def test_wrong_python_is_told_the_right_one():
    code = (
        "import runpy, sys; sys.version_info = (3, 9, 1, 'final', 0); "
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs 3.11" in done.stderr
    assert "make PYTHON=" in done.stderr
    assert "Traceback" not in done.stderr


def test_pins_and_place_are_in_the_fingerprint(checkout, monkeypatch, tmp_path):
    first = setup_env.fingerprint()
    assert setup_env.fingerprint() == first
    (checkout / "constraints.txt").write_text("numpy==1.26.3\n")
    second = setup_env.fingerprint()
    monkeypatch.setattr(setup_env, "mpi_version", lambda: "openmpi-9")
    third = setup_env.fingerprint()
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    assert len({first, second, third, setup_env.fingerprint()}) == 4


def test_half_made_virtualenvs_are_made_again(checkout):
    assert not setup_env.venv_usable()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", setup_env.VENV], check=True)
    assert not setup_env.venv_usable(), "interrupted before pip was there"
    setup_env.create_venv()
    assert setup_env.venv_usable()
    setup_env.VENV_PYTHON.unlink()
    assert not setup_env.venv_usable(), "the Python it was made with is gone"


def test_moved_virtualenv_is_made_again(checkout, monkeypatch):
    setup_env.create_venv()
    moved = checkout / "elsewhere"
    setup_env.VENV.rename(moved)
    monkeypatch.setattr(setup_env, "VENV", moved)
    monkeypatch.setattr(setup_env, "VENV_PYTHON", moved / "bin" / "python")
    assert not setup_env.venv_usable()


def test_interrupted_installs_are_forgotten(checkout, capsys):
    packages = setup_env.VENV / "lib" / "python3.11" / "site-packages"
    for name, files in {
        "whole-1.0": ["METADATA", "RECORD", "INSTALLER"],
        "half-2.0": ["METADATA", "RECORD"],
    }.items():
        info = packages / f"{name}.dist-info"
        info.mkdir(parents=True)
        for file in files:
            (info / file).touch()
    setup_env.forget_interrupted_installs()
    assert [info.name for info in packages.iterdir()] == ["whole-1.0.dist-info"]
    assert "half" in capsys.readouterr().err


def test_failed_set_up_is_not_taken_for_ready(checkout, monkeypatch):
    def fail():
        raise setup_env.Problem("no network", "plug it in")

    def succeed():
        setup_env.VENV.mkdir()

    monkeypatch.setattr(setup_env, "set_up", fail)
    assert setup_env.main() == 1
    assert not setup_env.READY.exists()
    monkeypatch.setattr(setup_env, "set_up", succeed)
    assert setup_env.main() == 0
    monkeypatch.setattr(setup_env, "set_up", fail)
    assert setup_env.main() == 0, "nothing to do any more"
    (checkout / "constraints.txt").write_text("numpy==1.26.3\n")
    assert setup_env.main() == 1, "the pins have changed"
