"""Train the digits example under horovodrun once per compression, and compare: `make demo`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

COMPRESSIONS = ["none", "fp16"]
RANKS = 2
EXAMPLE = str(Path(__file__).with_name("pytorch_digits.py"))
HOROVODRUN = str(Path(sys.executable).with_name("horovodrun"))


def train(compression: str, folder: Path) -> dict:
    """One training run on `RANKS` processes; ends the demo if it fails."""
    result = folder / f"{compression}.json"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if sys.stdout.isatty():  # horovodrun passes a progress bar on, if one is sent into its pipe
        env.update(TTY_COMPATIBLE="1", COLUMNS=str(shutil.get_terminal_size().columns - 12))
    command = [HOROVODRUN, "--gloo", "-np", str(RANKS), sys.executable, EXAMPLE]
    status = subprocess.run(
        [*command, "--compression", compression, "--json", str(result)],
        env=env,
    ).returncode
    if status:
        sys.exit(f"error: training with compression={compression} failed (its output is above)")
    return json.loads(result.read_text())


def main() -> None:
    """Run all, print the table."""
    console = Console()
    console.print(f"Horovod on {RANKS} processes, a small CNN on scikit-learn's digits")
    with tempfile.TemporaryDirectory() as folder:
        results = [train(compression, Path(folder)) for compression in COMPRESSIONS]
    table = Table("compression", "accuracy", "steps/s", "bytes per step and rank", "ratio")
    for result in results:
        table.add_row(
            result["compression"],
            f"{result['accuracy']:.1%}",
            f"{result['steps_per_second']:.0f}",
            f"{result['bytes_per_step']:,}",
            f"{results[0]['bytes_per_step'] / result['bytes_per_step']:.1f} x",
        )
    console.print(table)


if __name__ == "__main__":
    main()
