"""PyTorch and TensorFlow send the same words and get the same results, bit for bit.

For every type, alone and in groups; TensorFlow at first eagerly, then in a graph.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.parallel.job import ENVIRONMENT, ROOT


@pytest.mark.extended
@pytest.mark.parallel
def test_the_same_seed_step_name_and_data_give_the_same_words(tmp_path):
    launcher = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2"]
    for framework in ("torch", "tensorflow"):
        script = ["-m", "tests.parallel.frameworks.record", framework, str(tmp_path)]
        done = subprocess.run(
            [*launcher, sys.executable, *script], cwd=ROOT, env={**os.environ, **ENVIRONMENT},
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        ours, theirs = (np.load(tmp_path / f"{f}.{rank}.npz") for f in ("torch", "tensorflow"))
        assert ours.files == theirs.files
        sent = [name for name in ours.files if "words" in name or "codes" in name]
        assert len(sent) == (5 * 1 + 2 * 2) * 4 * 2  # tensors alone and in pairs, types, steps
        for name in ours.files:
            assert ours[name].dtype == theirs[name].dtype
            assert ours[name].tobytes() == theirs[name].tobytes(), name
