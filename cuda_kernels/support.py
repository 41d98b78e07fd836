"""Whether CUDA kernels can run here, and what is missing if not."""

import functools
import importlib.util

EXTRAS = "pip install 'horovod-gqsgd[cuda12]' (or [cuda13], for the CUDA version of your framework)"


class CudaUnavailableError(RuntimeError):
    """CUDA kernels were asked for and cannot run here."""


@functools.cache
def missing() -> str | None:
    """Why CUDA kernels cannot run in this process, and the fix; None if they can."""
    if importlib.util.find_spec("numba_cuda") is None:
        return f"numba-cuda is not installed: {EXTRAS}"
    try:
        from numba import config, cuda

        if config.ENABLE_CUDASIM:
            return "NUMBA_ENABLE_CUDASIM puts Numba's simulator in the place of the GPU: unset it"
        usable = cuda.is_available()
    except Exception as error:  # a missing library raises neither ImportError nor OSError
        first = str(error).strip().splitlines()[:1]
        return f"numba.cuda cannot be imported ({''.join(first)}): {EXTRAS}"
    if not usable:
        return (
            "numba.cuda finds no GPU or no driver for it: `nvidia-smi` must list the GPU (else "
            "install NVIDIA's driver, and in containers the NVIDIA Container Toolkit: --gpus all), "
            "and CUDA_VISIBLE_DEVICES must not hide it"
        )
    return None


def require() -> None:
    """Raise `CudaUnavailableError`, with the fix, where CUDA kernels cannot run."""
    reason = missing()
    if reason:
        raise CudaUnavailableError(f"CUDA kernels cannot run: {reason}")
