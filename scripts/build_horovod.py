#!/usr/bin/env python3
"""Build Horovod for the interpreter that runs this script; see ``--help``."""

import sys

from horovod_build.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
