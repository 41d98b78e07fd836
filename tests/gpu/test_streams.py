"""Kernels keep to the current stream, wait for nothing, and reach beyond 2^31 elements."""

import numpy as np
import pytest
import torch

from horovod_gqsgd.config import Config
from horovod_gqsgd.cuda_kernels.launch import Launcher
from horovod_gqsgd.torch.device import Cuda


def encoded(x: torch.Tensor, words: torch.Tensor) -> None:
    """Norms and words of ``x``, with launches alone."""
    place = Cuda(x.device)
    with place.active():
        launcher = Launcher(Config(), 0, 2, place.run, place.empty)
        head = torch.empty(3 + -(-x.numel() // 1024), dtype=torch.int32, device=x.device)
        launcher.write_header(place.array(head), 1, 5)
        launcher.local_norms(place.array(x), place.array(head[3:]))
        norms, keys = launcher.prepare(place.array(head[3:]), place.array(head), "g", x.numel())
        launcher.encode_linear(place.array(x), norms, keys, place.array(words))


def test_order_of_the_stream():
    """What the stream was doing before is done before: the kernels see its result."""
    size = 1 << 20
    source = torch.randn(size, device="cuda")
    expected, words = (torch.empty(size // 4, dtype=torch.int32, device="cuda") for _ in range(2))
    encoded(source, expected)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.zeros(size, device="cuda")
        torch.cuda._sleep(200_000_000)  # about 0.1 s, in which a kernel elsewhere would read zeros
        x.copy_(source)
        encoded(x, words)
    side.synchronize()
    assert torch.equal(words, expected)


def test_nothing_waits_for_the_device():
    x = torch.randn(1 << 16, device="cuda")
    words = torch.empty(1 << 14, dtype=torch.int32, device="cuda")
    encoded(x, words)  # compiles
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    busy = torch.cuda.Event()
    busy.record()
    torch.cuda.set_sync_debug_mode("error")
    try:
        encoded(x, words)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not busy.query(), "the launches have waited for the device"


def test_every_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU: nothing to tell apart")
    words = []
    for device in ("cuda:0", "cuda:1"):
        x = torch.arange(4096.0, device=device)
        words.append(torch.empty(1024, dtype=torch.int32, device=device))
        encoded(x, words[-1])  # with cuda:0 as torch's current device both times
    assert torch.equal(words[0].cpu(), words[1].cpu())


def test_beyond_two_to_the_31_elements():
    size = 2**31 + 4096
    if torch.cuda.mem_get_info()[0] < 8 * 2**30:
        pytest.skip("needs 8 GiB of free GPU memory")
    x = torch.zeros(size, dtype=torch.bfloat16, device="cuda")
    x[-4096:] = torch.arange(4096.0).bfloat16()
    words = torch.empty(size // 4, dtype=torch.int32, device="cuda")
    encoded(x, words)
    from horovod_gqsgd import lanes, norms
    from horovod_gqsgd.codecs import linear
    from horovod_gqsgd.dither import Dither

    tail = np.arange(4096, dtype=np.float32)
    tail = torch.from_numpy(tail).bfloat16().float().numpy()
    each = norms.spread(norms.joined(norms.local(tail, "inf", "inf", 1024), "inf"), 4096, 1024)
    dither = Dither(0, 5, "g").correlated(0, 2, size - 4096, 4096)
    expected = lanes.pack(linear.encode(tail, each, linear.level_count(8, 2), dither), 8)
    assert np.array_equal(words[-1024:].cpu().numpy(), expected)
    assert not words[:-1024].any()
