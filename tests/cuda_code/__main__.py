"""Write docs/cuda-kernels.md: ``python -m tests.cuda_code``."""

from __future__ import annotations

import sys

from tests.cuda_code import report
from tests.cuda_code.programs import ROOT, catalogue, make


def main() -> int:
    """Compile what is missing, write the page."""
    make(catalogue())
    report.PAGE.write_text(report.page())
    print(report.PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
