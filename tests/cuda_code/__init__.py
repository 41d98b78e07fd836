"""The compiled CUDA kernels, looked at and run without a GPU.

``python -m tests.cuda_code`` writes the table in docs/cuda-kernels.md.
"""
