"""Finished wheels, one folder per `Target`, outside of any checkout.

pip's own wheel cache cannot serve here: it knows nothing of the frameworks a wheel was compiled
for, and hands a Horovod built without TensorFlow to an environment that has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from .target import Target


def default_cache() -> Path:
    """``$HOROVOD_WHEEL_CACHE``, else ``horovod-wheels`` in the user's cache folder."""
    named = os.environ.get("HOROVOD_WHEEL_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "horovod-wheels")


def cached_wheel(cache: Path, target: Target) -> Path | None:
    """The finished wheel for ``target``, if there is one."""
    return next(iter((cache / target.key).glob("horovod-*.whl")), None)


@contextlib.contextmanager
def exclusive(lock: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold ``lock``; where another process has it, say so and wait.

    The kernel frees the lock when its holder ends, however that happens.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process holds {lock}; waiting for it to finish …")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def build_folder(cache: Path) -> Iterator[Path]:
    """A folder to build in, beside the finished wheels; call with the cache's lock held.

    Since nobody else builds then, folders of that kind are leftovers of killed builds.
    """
    for leftover in cache.glob(".building-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=".building-", dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def store(cache: Path, target: Target, finished: Path) -> Path:
    """Move the folder ``finished``, which holds the wheel, to its place in one step."""
    (finished / "target.json").write_text(json.dumps(asdict(target), indent=2) + "\n")
    place = cache / target.key
    shutil.rmtree(place, ignore_errors=True)
    finished.replace(place)
    wheel = cached_wheel(cache, target)
    assert wheel is not None
    return wheel
