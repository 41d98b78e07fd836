"""CUDA kernels in Numba, one file an operation; bit for bit the numbers of the CPU kernels.

Importing this package needs nothing. `support.missing` tells whether kernels can run here,
`support.require` raises if not, `launch.Launcher` runs them.
"""
