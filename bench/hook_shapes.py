#!/usr/bin/env python3
"""hook_shapes: the time of the hook alone on the shapes of real models, thinwire's compared with
PyTorch's for the same reduction.

    PYTHONPATH=build/release/python .venv/bin/python bench/hook_shapes.py \\
        [--shapes lstm650 resnet50] [--workers 2] [--json F]

A backward that computes nothing adds ready gradients to DDP's buckets, and there is no
optimizer, so the rest of a step is the hook. Contenders take single steps in turn
(ddp_overhead.py). A ratio below 1 means that thinwire is faster.
"""

# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

from ddp_overhead import contender, free_port, measured, take_turns, text_of


def lstm(width, words=10000, layers=2):
    """A word model for the Penn Treebank."""
    layer = [(4 * width, width), (4 * width, width), (4 * width,), (4 * width,)]
    return [(words, width), *layers * layer, (words, width), (words,)]


def resnet50():
    shapes, width = [(64, 3, 7, 7), (64,), (64,)], 64
    for blocks, inner in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            convolutions = [(inner, width, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)]
            convolutions += [(4 * inner, width, 1, 1)] if block == 0 else []
            for shape in convolutions:
                shapes += [shape, shape[:1], shape[:1]]  # with its norm layer
            width = 4 * inner
    return [*shapes, (1000, 2048), (1000,)]


SHAPES = {"lstm650": lambda: lstm(650), "lstm1500": lambda: lstm(1500), "resnet50": resnet50}


class Ready(torch.autograd.Function):
    """A model whose gradients are ready in advance."""

    @staticmethod
    def forward(ctx, gradients, *parameters):
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx, _):
        return (None, *ctx.gradients)


class Model(nn.Module):
    def __init__(self, shapes, rank):
        super().__init__()
        generator = torch.Generator().manual_seed(rank)
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        self.gradients = [0.01 * torch.randn(shape, generator=generator) for shape in shapes]

    def forward(self):
        return Ready.apply(self.gradients, *self.weights)


def step(one):
    ddp, _, _ = one
    ddp.zero_grad(set_to_none=False)  # they are views of the buckets and must stay
    ddp().backward()


def work(rank, options, shapes, scheme, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), THINWIRE_LOG="warning")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=options.workers)
    # PyTorch's PowerSGD hook over Gloo aborts with several buckets, so both use one bucket.
    bucket_mb = 1000 if scheme.startswith("powersgd") else 25
    names = [f"torch {scheme}", f"thinwire {scheme}"]
    field = {
        name: contender(
            name, lambda: Model(SHAPES[shapes](), rank), bucket_mb, gradient_as_bucket_view=True
        )
        for name in names
    }
    take_turns(field, step, 4)
    rounds = [take_turns(field, step, options.steps) for _ in range(options.rounds)]
    if rank == 0:
        report(options, shapes, scheme, measured(names, rounds))
    dist.barrier()
    dist.destroy_process_group()


def report(options, shapes, scheme, rows):
    theirs, ours = rows
    print(
        f"  {shapes:10} {scheme:18} {1e3 * theirs['seconds_per_step']:9.2f} ms "
        f"{1e3 * ours['seconds_per_step']:9.2f} ms   {text_of(ours)}",
        flush=True,
    )
    if options.json:
        with open(options.json, "a") as file:
            print(
                json.dumps(
                    {
                        "shapes": shapes,
                        "workers": options.workers,
                        "torch": torch.__version__,
                        "rows": rows,
                    }
                ),
                file,
            )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=["lstm650", "resnet50"])
    parser.add_argument(
        "--schemes",
        nargs="*",
        default=["fp16", "powersgd:rank=1", "powersgd:rank=2", "powersgd:rank=4"],
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=4, help="steps per round")
    parser.add_argument("--json", help="file to which each row is added as a line")
    options = parser.parse_args()
    print(
        f"{options.workers} workers over Gloo, {options.rounds} rounds of {options.steps} steps: "
        f"PyTorch's hook, thinwire, thinwire / PyTorch"
    )
    for shapes in options.shapes:
        for scheme in options.schemes:
            torch.multiprocessing.spawn(
                work, (options, shapes, scheme, free_port()), options.workers
            )


if __name__ == "__main__":
    main()
