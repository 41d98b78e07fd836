"""An interpreter of PTX: runs what the compiler emitted for a GPU, on NumPy, bit for bit.

`launch` runs a kernel compiled by Numba on arrays. All threads of all blocks step together, so
that thousands of elements take fractions of a second; an access outside an array, a misaligned
one, or an instruction the interpreter does not know is an error.
"""

from tests.ptx.launch import Window, launch
from tests.ptx.machine import Schedule
from tests.ptx.memory import MemoryFault
from tests.ptx.text import UnknownInstruction, parse

__all__ = ["MemoryFault", "Schedule", "UnknownInstruction", "Window", "launch", "parse"]
