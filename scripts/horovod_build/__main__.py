"""Command line: build (or take from the cache), install, check."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from .cache import build_folder, cached_wheel, default_cache, exclusive, store
from .compile import build_wheel
from .pip import Pip
from .preflight import preflight
from .problem import Problem
from .target import HOROVOD, Target, find_target
from .verify import verify


def say(message: str) -> None:
    """Tell the user; stdout stays free."""
    print(message, file=sys.stderr, flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        prog="build_horovod",
        description=f"Build Horovod {HOROVOD} for the torch and TensorFlow of this Python "
        f"({sys.executable}), install it and check that it works. Finished wheels are kept and "
        "reused. Horovod's own build variables (HOROVOD_GPU_OPERATIONS, HOROVOD_NCCL_HOME, "
        "HOROVOD_CMAKE, …), CXX and MAKEFLAGS are respected.",
    )
    boolean = argparse.BooleanOptionalAction
    parser.add_argument("--torch", action=boolean, help="default: if installed")
    parser.add_argument("--tensorflow", action=boolean, help="default: if installed")
    parser.add_argument(
        "--mpi",
        choices=["auto", "yes", "no"],
        default="auto",
        help="auto (default): where mpicxx is on PATH; Gloo is always built",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=default_cache(),
        metavar="DIR",
        help="where wheels are kept (default: %(default)s)",
    )
    parser.add_argument("--force", action="store_true", help="build even if a wheel is there")
    return parser.parse_args(arguments)


def find_or_build(target: Target, cache: Path, force: bool) -> Path:
    """The wheel for ``target``, from the cache or built now."""
    with exclusive(cache / "lock", say):
        wheel = cached_wheel(cache, target)
        if wheel and not force:
            say(f"using the wheel in {wheel.parent}")
            return wheel
        preflight(target, cache)
        log = cache / f"{target.key}.log"
        say(f"building {target}; this takes some minutes\n  log: {log}")
        with build_folder(cache) as folder:
            return store(cache, target, build_wheel(Pip(log), target, cache, folder))


def install(wheel: Path, cache: Path) -> None:
    """Put the wheel into this interpreter, replacing any other build of the same version."""
    pip = Pip(cache / "install.log")
    pip("installing what Horovod needs", "install", str(wheel))
    # pip sees the version alone: a wheel built for other frameworks would count as installed.
    pip("installing Horovod", "install", "--force-reinstall", "--no-deps", str(wheel))


def main(arguments: list[str] | None = None) -> int:
    """Build, install, check; returns the exit status."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that leftovers are removed
    start = time.monotonic()
    try:
        target = find_target(options.torch, options.tensorflow, options.mpi)
        cache = options.cache.expanduser().absolute()
        cache.mkdir(parents=True, exist_ok=True)
        install(find_or_build(target, cache, options.force), cache)
        for line in verify(target):
            say(f"  {line}")
    except Problem as problem:
        say(f"error: {problem}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; nothing half-built is left, run it again when you like")
        return 130
    say(f"{target} is ready ({time.monotonic() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
