"""Mixed precision and gradient accumulation: losses are scaled, averages sent every fourth batch.

    horovodrun -np 2 python examples/pytorch_amp.py

The scaler sees what it would see without compression: a gradient that overflows on one rank is
NaN on all of them, the step is skipped everywhere, and the next one is clean.
"""

import horovod.torch as hvd
import torch
from pytorch_digits import digits, network
from torch.nn.functional import cross_entropy

from horovod_gqsgd.torch import GlobalQSGD

ACCUMULATE, EPOCHS, BATCH = 4, 16, 8


def main() -> None:
    """Train in bfloat16 on CPU, float16 on CUDA; validate; report on rank 0."""
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else "cpu"
    kind = torch.device(device).type
    images, labels = (tensor.to(device) for tensor in digits())
    train, valid = slice(hvd.rank(), 1400, hvd.size()), slice(1400, None)
    model = network().to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=ACCUMULATE,
        compression=GlobalQSGD(bits=6),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    scaler = torch.amp.GradScaler(kind, init_scale=2.0**12)

    whole = len(labels[train]) // (ACCUMULATE * BATCH) * ACCUMULATE * BATCH
    for _ in range(EPOCHS):
        for step in torch.randperm(len(labels[train]))[:whole].split(ACCUMULATE * BATCH):
            optimizer.zero_grad()
            for batch in step.split(BATCH):
                with torch.autocast(kind):
                    loss = cross_entropy(model(images[train][batch]), labels[train][batch])
                scaler.scale(loss / ACCUMULATE).backward()
            optimizer.synchronize()  # the averages, before the scaler looks at them
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()

    if hvd.rank() == 0:
        right = model(images[valid]).argmax(1) == labels[valid]
        print(f"accuracy {right.float().mean():.1%}, loss scale {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()
