"""A rank on a virtual host: the same gradient uncompressed and compressed, and the bytes it took.

Compressed results must be those of the NumPy specification, bit for bit.
"""

import json
import socket
import sys
from pathlib import Path

import horovod.torch as hvd
import torch

from horovod_gqsgd.torch import GlobalQSGD
from tests.parallel.torch.specification import expected, gradient

ELEMENTS = 3_000_000
CASES = {
    "none": hvd.Compression.none,
    "8-bit": GlobalQSGD(bits=8),
    "5-bit": GlobalQSGD(bits=5),
    "exponential 4-bit": GlobalQSGD(levels="exponential", bits=4),
}


def sent() -> int:
    """Bytes that have left this host, by the counter of its interface."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    gradients = [gradient(rank, ELEMENTS) for rank in range(hvd.size())]
    bytes_sent = {}
    for name, compression in CASES.items():
        # Once before it counts: kernels compile, and meanwhile Horovod's ranks keep in touch.
        hvd.allreduce(gradients[hvd.rank()], name=f"{name} before", compression=compression)
        hvd.barrier()
        before = sent()
        mean = hvd.allreduce(gradients[hvd.rank()], name=name, compression=compression)
        hvd.barrier()
        bytes_sent[name] = sent() - before
        wanted = torch.stack(gradients).mean(0)
        if name != "none":
            wanted = expected(gradients, compression.config, name)
        assert torch.equal(mean, wanted), name
    record = {"host": socket.gethostname(), "size": hvd.size(), "sent": bytes_sent}
    Path(sys.argv[1], f"{hvd.rank()}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main()
