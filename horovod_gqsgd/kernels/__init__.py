"""CPU kernels in Numba: the specification's numbers at the speed of memory."""

from horovod_gqsgd.kernels.jit import choose_threading_layer

choose_threading_layer()
