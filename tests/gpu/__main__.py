"""`make test-gpu`: the tests that need a GPU and the speed of the kernels, in one report."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "output" / "gpu-report.md"


def main() -> int:
    """Run both, show and write what they say; returns the exit status of the tests."""
    tests = [sys.executable, "-m", "pytest", "-rs", "-v", "tests/gpu", *sys.argv[1:]]
    speed = [sys.executable, "benchmarks/gpu.py"]
    parts, status = ["# horovod_gqsgd on a GPU"], 0
    for title, command in (("Tests", tests), ("Speed", speed)):
        done = subprocess.run(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        print(done.stdout)
        text = f"```\n{done.stdout.strip()}\n```" if command is tests else done.stdout.strip()
        parts.append(f"## {title}\n\n{text}")
        status = done.returncode if command is tests else status
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text("\n\n".join(parts) + "\n")
    print(f"written to {REPORT}: please attach it to an issue, whatever it says")
    return status


if __name__ == "__main__":
    sys.exit(main())
