"""What Horovod's timeline shows, whose writer keeps a core busy from the start of a job on."""

import contextlib
import json
import time

from horovod_gqsgd.torch import GlobalQSGD
from tests.parallel.torch.conftest import hvd
from tests.parallel.torch.specification import gradient

__all__ = ["hvd"]  # a fixture


def fused(path):
    """Names of the allreduces that Horovod's timeline tells to have gone together with others."""
    text = path.read_text().rstrip().rstrip(",").rstrip("]")
    events = json.loads(f"{text}]")
    names = {e["pid"]: e["args"].get("name") for e in events if e.get("name") == "process_name"}
    return [names[e["pid"]] for e in events if e.get("name") == "MEMCPY_IN_FUSION_BUFFER"]


def test_norms_and_words_are_fused(hvd, tmp_path):
    """Many at a time, as Horovod's timeline shows: one by one, forty would take forty rounds."""
    names = [f"fused.{i}" for i in range(40)]
    for timed in (False, True):
        if timed:
            hvd.start_timeline(str(tmp_path / "timeline.json"))
        marked = [GlobalQSGD.compress(gradient(hvd.rank(), 2000))[0] for _ in names]
        pairs = zip(marked, names, strict=True)
        for handle in [hvd.allreduce_async_(tensor, name=name) for tensor, name in pairs]:
            hvd.synchronize(handle)
    hvd.stop_timeline()
    if hvd.rank() == 0:  # a thread of Horovod's writes the file
        together: list[str] = []
        deadline = time.monotonic() + 10
        while len(together) < 40 and time.monotonic() < deadline:
            time.sleep(0.1)
            with contextlib.suppress(OSError, ValueError):
                together = fused(tmp_path / "timeline.json")
        words = {name for name in together if name.endswith(".gq.words")}
        assert len(words) >= 20
        assert len({*together} - words) >= 20
