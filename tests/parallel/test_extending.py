"""The codec of docs/extending.md works in both frameworks as its specification says."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.parallel.job import ENVIRONMENT, ROOT

pytestmark = pytest.mark.parallel

CHECK = """
    import importlib
    import sys

    import numpy as np
    import ternary
    from horovod_gqsgd import reference
    from horovod_gqsgd.config import Config

    name = sys.argv[1]
    hvd = importlib.import_module(f"horovod.{name}")
    framework = importlib.import_module(name)
    plugin = importlib.import_module(f"horovod_gqsgd.{name}")
    tensor = framework.tensor if name == "torch" else framework.constant
    hvd.init()
    arrays = [
        np.random.default_rng(rank).standard_normal((3, 1700)).astype(np.float32)
        for rank in range(hvd.size())
    ]
    for parameters in ({}, {"rounding": "independent", "norm": 2, "seed": 3}):
        config = Config(levels="ternary", **parameters)
        compression = plugin.GlobalQSGD(levels="ternary", **parameters)
        mine = tensor(arrays[hvd.rank()])
        for step in range(2):
            key = f"t{len(parameters)}"
            result = hvd.allreduce(mine, name=key, compression=compression).numpy()
            expected = reference.mean([x.reshape(-1) for x in arrays], config, key, step)
            assert (result.reshape(-1) == expected).all()
            assert 0 < len(np.unique(result)) < 6 * 2 * hvd.size()
        group = [mine, mine[0]]
        results = hvd.grouped_allreduce(group, name=f"{key}g", compression=compression)
        expected = reference.mean([x[0] for x in arrays], config, f"{key}g.1")
        assert (results[1].numpy() == expected).all()
    assert plugin.statistics.word_bytes > 0
    try:
        plugin.GlobalQSGD(levels="ternary", bits=5)
    except ValueError as error:
        assert "bits=5" in str(error)
    print("as specified", flush=True)
"""


@pytest.mark.parametrize(("framework", "np"), [("torch", 3), ("tensorflow", 2)])
def test_the_codec_of_the_docs(framework, np, tmp_path):
    page = (ROOT / "docs" / "extending.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "ternary.py").write_text(code)
    (tmp_path / "check.py").write_text(textwrap.dedent(CHECK))
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    done = subprocess.run(
        [horovodrun, "--gloo", "-np", str(np), sys.executable, "check.py", framework],
        cwd=tmp_path, env={**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("as specified") == np
