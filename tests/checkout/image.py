"""The files that the image's `test` stage holds, as Dockerfile and .dockerignore say."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
HOME = PurePosixPath("/home/horovod")  # where the image's tests run


def stages() -> dict[str, tuple[str, str]]:
    """What every stage of the Dockerfile is based on, and its text."""
    text = (ROOT / "Dockerfile").read_text()
    _before, *parts = re.split(r"^FROM (\S+) AS (\w+)$", text, flags=re.M)
    return {name: (base, body) for base, name, body in zip(*[iter(parts)] * 3, strict=True)}


def copies(stage: str) -> Iterator[tuple[str, PurePosixPath]]:
    """Files and folders of the checkout, and where in the image this stage puts them."""
    base, body = stages().get(stage, ("", ""))
    if base:
        yield from copies(base)
    for line in re.findall(r"^COPY (?!--from)(.*)$", body, re.M):
        *sources, target = (word for word in line.split() if not word.startswith("--"))
        for source in sources:
            inside = target.endswith("/") and not source.endswith("/")
            yield source, HOME / target / (Path(source).name if inside else "")


def sent(path: Path) -> bool:
    """Whether .dockerignore lets a file of the checkout come to the image's builder."""
    everything, *rules = (
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert everything == "*", "what is not named stays away"
    name, here = path.relative_to(ROOT).as_posix(), False
    for rule in rules:
        if rule.startswith("!"):
            here |= name == rule[1:] or name.startswith(f"{rule[1:]}/")
        elif rule.startswith("**/"):
            here &= rule[3:] not in name.split("/")
        else:
            raise NotImplementedError(f"no meaning for {rule} in .dockerignore")
    return here


def copy(stage: str, folder: Path) -> None:
    """Copy to ``folder`` what the image has in its home folder."""
    for source, target in copies(stage):
        if HOME not in target.parents:
            continue
        origin = ROOT / source
        files = [path for path in origin.rglob("*") if path.is_file()] or [origin]
        for path in filter(sent, files):
            to = folder / target.relative_to(HOME) / path.relative_to(origin)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)
