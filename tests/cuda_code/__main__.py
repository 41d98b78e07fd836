"""Write docs/cuda-kernels.md: ``python -m tests.cuda_code``."""

from __future__ import annotations

import sys

from tests.cuda_code import report
from tests.cuda_code.programs import ROOT, make_all


def main() -> int:
    """Compile what is missing, measure every kernel, write the page."""
    make_all()
    page = ROOT / "docs" / "cuda-kernels.md"
    page.write_text(report.page())
    print(page.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
