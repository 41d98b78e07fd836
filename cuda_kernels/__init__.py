"""Numba CUDA kernels, one file per operation; installed as ``horovod_gqsgd.cuda_kernels``."""
