"""These tests belong into a process of their own, which `tests/unit/test_cuda.py` starts.

Numba decides when it is imported whether ``numba.cuda`` is the simulator.
"""

import numba

collect_ignore_glob = [] if numba.config.ENABLE_CUDASIM else ["test_*.py"]

if numba.config.ENABLE_CUDASIM:
    from tests.simulator.turns import take_turns

    take_turns()
