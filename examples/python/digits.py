"""digits: image classification with DDP and thinwire, with checkpoints that any number of workers
can resume.

    torchrun --nproc-per-node 4 examples/python/digits.py --scheme dgc --density 0.01

Stop after 40 steps, then continue with two workers:

    torchrun --nproc-per-node 4 examples/python/digits.py --save run.pt --steps 40
    torchrun --nproc-per-node 2 examples/python/digits.py --save run.pt --steps 200
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import csv
import os
import pathlib

import torch
import torch.distributed as dist
import thinwire
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def load_digits():
    """The handwritten 8x8 digits that `make setup` fetches. One fifth is the test set."""
    path = os.environ.get(
        "THINWIRE_DIGITS", pathlib.Path(__file__).parents[2] / "data" / "digits.csv"
    )
    with open(path) as file:
        rows = torch.tensor([[float(cell) for cell in row] for row in csv.reader(file)])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    x, y = rows[:, :64].view(-1, 1, 8, 8) / 8 - 1, rows[:, 64].long()
    return (x[360:], y[360:]), (x[:360], y[:360])


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheme", default="dgc")
    parser.add_argument("--density", type=float)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--save", help="checkpoint: read if it exists, written every 20 steps and at the end"
    )
    parser.add_argument("--load-scheme", help="a C++ file with a scheme of your own")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if options.load_scheme:
        thinwire.load_scheme(options.load_scheme)
    (x, y), (test_x, test_y) = load_digits()
    model = make_model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    extra = {} if options.density is None else {"density": options.density}
    handle = thinwire.attach(ddp, optimizer, scheme=options.scheme, **extra)

    first = 0
    if options.save and os.path.exists(options.save):
        checkpoint = torch.load(options.save, weights_only=True)
        first = checkpoint["step"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        handle.load_state_dict(checkpoint["thinwire"])

    def save(step):
        state = handle.full_state_dict()  # collects all ranks' states on rank 0
        if rank == 0:
            torch.save(
                {
                    "step": step,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "thinwire": state,
                },
                options.save + ".new",
            )
            os.replace(options.save + ".new", options.save)

    for step in range(first, options.steps):
        generator = torch.Generator().manual_seed(step * world + rank)
        chosen = torch.randint(len(x), (options.batch,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x[chosen]), y[chosen]).backward()
        optimizer.step()
        if options.save and (step + 1 == options.steps or (step + 1) % 20 == 0):
            save(step + 1)

    handle.check_replicas()
    if rank == 0:
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean()
        report = handle.report()
        print(
            f"{handle.scheme}: accuracy {accuracy:.4f} after {options.steps} steps "
            f"({first} of them before), {world} workers, "
            f"1/{report.ratio:.0f} of the bytes"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
