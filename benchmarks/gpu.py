"""Throughput of the CUDA kernels, as a share of what a plain copy on the same GPU reaches.

``python benchmarks/gpu.py`` prints a Markdown report of the machine and of every operation.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np
import torch

from horovod_gqsgd.config import Config
from horovod_gqsgd.torch.device import Cuda, missing

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


#: Operations that follow one another on the stream while the time runs. Python launches each while
#: the one before it runs, so that only the first launch of all counts.
LAUNCHES = 32


def seconds(operation: Callable[[], Any], repeats: int) -> float:
    """Time of one operation on the device: the median of batches of `LAUNCHES`."""
    operation()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(LAUNCHES):
            operation()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / LAUNCHES)
    return statistics.median(times)


Operation = tuple[str, int, Callable[[], Any]]


def operations(size: int, n: int) -> Iterator[Operation]:
    """Name, bytes read and written, and what to run."""
    place = Cuda(torch.device("cuda", torch.cuda.current_device()))
    head = torch.zeros(3 + -(-size // 1024), dtype=torch.int32, device="cuda")
    for name, dtype in DTYPES.items():
        x = torch.randn(size, device="cuda").to(dtype)
        plain = launcher(place, n)
        plain.write_header(place.array(head), 1, 0)
        maxima, given = place.array(head[3:]), place.array(x)
        yield f"norm {name}", x.nbytes, partial(plain.local_norms, given, maxima)
        norms, keys = plain.prepare(maxima, place.array(head), "g", size)
        words, out = place.empty(-(-size // 4), np.int32), place.array(torch.empty_like(x))
        both = x.nbytes + size
        for rounding in ("independent", "correlated"):
            encode = launcher(place, n, rounding=rounding).encode_linear
            what = f"encode linear 8, {rounding}, {name}"
            yield what, both, partial(encode, given, norms, keys, words)
        decode = partial(plain.decode_linear, words, norms, out, 1.0)
        yield f"decode linear 8, {name}", both, decode
        if name == "float32":
            yield from exponential(place, n, given, norms, keys, out)


def exponential(
    place: Any, n: int, given: Any, norms: Any, keys: Any, out: Any
) -> Iterator[Operation]:
    """The same for exponential levels."""
    from horovod_gqsgd.cuda_kernels.launch import tree_of

    size = given.size
    codes = place.array(torch.empty(size, dtype=torch.uint8, device="cuda"))
    share = size // n // 8 * 8
    reduced = place.array(torch.empty(share, dtype=torch.uint8, device="cuda"))
    nodes = place.array(torch.from_numpy(tree_of(n)).cuda())
    for base in (2, 2**0.5, 2**0.25):
        scheme = launcher(place, n, levels="exponential", base=base)
        encode = partial(scheme.encode_exponential, given, norms, keys, codes)
        yield f"encode exponential 8, base {base:.3g}", 5 * size, encode
        decode = partial(scheme.decode_exponential, codes, norms, out, 1.0)
        yield f"decode exponential 8, base {base:.3g}", 5 * size, decode
        for reduction in ("exact", "pairwise"):
            scheme = launcher(place, n, levels="exponential", base=base, reduction=reduction)
            reduce = partial(scheme.reduce, codes, share, reduced, keys, share, 0, nodes)
            yield f"reduce {n} rows, {reduction}, base {base:.3g}", (n + 1) * share, reduce


def launcher(place: Any, n: int, **config: Any) -> Any:
    """The operations of a configuration."""
    from horovod_gqsgd.cuda_kernels.launch import Launcher

    return Launcher(Config(**config), 0, n, place.run, place.empty)


def copy_speed(size: int, repeats: int) -> float:
    """Bytes read and written per second by torch's copy of float32."""
    source, target = (torch.empty(size, device="cuda") for _ in range(2))
    return 2 * source.nbytes / seconds(partial(target.copy_, source), repeats)


def main() -> int:
    """Parse, measure, print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=64, help="elements, in 2^20 (64)")
    parser.add_argument("--rows", type=int, default=4, help="rows of a reduction (4)")
    parser.add_argument("--repeats", type=int, default=5, help=f"batches of {LAUNCHES} (5)")
    options = parser.parse_args()
    reason = missing()
    if reason:
        print(f"no measurement: {reason}", file=sys.stderr)
        return 1
    versions = " ".join(
        f"{p} {metadata.version(p)}" for p in ("torch", "numba", "numba-cuda", "horovod")
    )
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    print(f"{properties.name}, sm_{properties.major}{properties.minor}, "
          f"{properties.multi_processor_count} SMs; CUDA {torch.version.cuda}; "
          f"{versions}; Python {platform.python_version()}\n")  # fmt: skip
    size = options.millions << 20
    copy = copy_speed(size, options.repeats) / 1e9
    print(f"| operation, {options.millions} Mi elements | GB/s | of a copy |\n|---|---|---|")
    print(f"| copy float32 | {copy:.0f} | 100 % |")
    for name, handled, operation in operations(size, options.rows):
        speed = handled / seconds(operation, options.repeats) / 1e9
        print(f"| {name} | {speed:.0f} | {100 * speed / copy:.0f} % |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
