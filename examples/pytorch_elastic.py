"""Workers may come and go: the job shrinks and grows, and averages stay right at every size.

    horovodrun -np 2 --host-discovery-script ./hosts.sh python examples/pytorch_elastic.py

``hosts.sh`` prints the hosts that are there now, one ``name:slots`` a line; one on which a worker
died is not used again. Nothing about elastic training changes with compression; linear levels need
`bits` that serve the largest number of workers (8 serve up to 127).
"""

import argparse

import horovod.torch as hvd
import torch
from pytorch_digits import digits, network
from torch.nn.functional import cross_entropy

from horovod_gqsgd.torch import GlobalQSGD


def main() -> None:
    """Train, validate, report on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = digits()
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=GlobalQSGD,
    )

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        while state.epoch < options.epochs:
            mine = slice(hvd.rank(), 1400 - 1400 % hvd.size(), hvd.size())
            for batch in torch.arange(len(labels[mine])).split(32):
                optimizer.zero_grad()
                cross_entropy(model(images[mine][batch]), labels[mine][batch]).backward()
                optimizer.step()
            if hvd.rank() == 0:
                print(f"epoch {state.epoch}: {hvd.size()} workers", flush=True)
            state.epoch += 1
            state.commit()  # where the others take up if a worker is lost

    train(hvd.elastic.TorchState(model, optimizer, epoch=0))
    if hvd.rank() == 0:
        right = model(images[1400:]).argmax(1) == labels[1400:]
        print(f"accuracy {right.float().mean():.1%}")


if __name__ == "__main__":
    main()
