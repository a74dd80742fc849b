"""delayed: workers continue training while their messages are in flight, and take in the others'
updates `--delay` steps later.

    torchrun --nproc-per-node 4 examples/python/delayed.py --delay 20 --local-steps 5

FedAvg:

    torchrun --nproc-per-node 4 examples/python/delayed.py --delay 0 --local-steps 5

Stop after 60 steps with one file per worker (run.0.pt, run.1.pt, ...), then continue exactly there:

    torchrun --nproc-per-node 4 examples/python/delayed.py --save run --steps 60
    torchrun --nproc-per-node 4 examples/python/delayed.py --save run --steps 200
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import os

import torch
import torch.distributed as dist
import thinwire
from digits import load_digits, make_model
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", default="20")
    parser.add_argument("--local-steps", type=int, default=5)
    parser.add_argument("--scheme", default="dgc:density=0.05")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--save", help="checkpoint, one file per worker: read if it exists, written at the end"
    )
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    (x, y), (test_x, test_y) = load_digits()
    model = make_model()  # plain: there is nothing for DDP to do
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    handle = thinwire.attach(
        model,
        optimizer,
        scheme=options.scheme,
        delay=options.delay,
        local_steps=options.local_steps,
    )

    first, file = 0, f"{options.save}.{rank}.pt"
    if options.save and os.path.exists(file):
        checkpoint = torch.load(file, weights_only=True)
        first = checkpoint["step"]
        optimizer.load_state_dict(checkpoint["optimizer"])
        handle.load_state_dict(checkpoint["thinwire"])  # this worker's weights are in it

    for step in range(first, options.steps):
        generator = torch.Generator().manual_seed(step * world + rank)
        chosen = torch.randint(len(x), (32,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()

    if (
        options.save
    ):  # every worker has its own momentum, weights and messages in flight
        torch.save(
            {
                "step": options.steps,
                "optimizer": optimizer.state_dict(),
                "thinwire": handle.state_dict(),
            },
            file + ".new",
        )
        os.replace(file + ".new", file)
    report = handle.report()
    handle.drain()  # now all workers have the same weights
    if rank == 0:
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean()
        print(
            f"{handle.scheme}, delay {handle.delay}: accuracy {accuracy:.4f} after "
            f"{options.steps} steps ({first} of them before), {world} workers, "
            f"1/{report.ratio:.0f} of the bytes, {report.wait_seconds:.2f} s of waiting"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
