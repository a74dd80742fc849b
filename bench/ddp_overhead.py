#!/usr/bin/env python3
"""ddp_overhead: compares the cost of thinwire in a DDP step with plain DDP and PyTorch's own hooks,
in one run.

    PYTHONPATH=build/release/python .venv/bin/python bench/ddp_overhead.py \\
        [--model mlp|lstm|resnet50] [--workers 2] [--json F]

All contenders live in the same workers, each with its own model. They take single steps in turn,
and each goes first equally often, so that other load on the machine affects all of them equally.
Each turn gives a ratio to the first contender. The output is the median over all turns and its
95 % interval. For mlp, plain DDP takes part twice: the second entry's distance from 1 is noise.
Two more ratios: of the fastest twentieth of all steps, and of the processor time of all threads
of rank 0, which does not include waiting.
"""

# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import math
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
import thinwire
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


class Lstm(nn.Module):
    """The shapes of a word model: a large embedding, two layers, a large output layer."""

    def __init__(self, words=5000, width=400):
        super().__init__()
        self.embedding, self.lstm, self.head = (
            nn.Embedding(words, width),
            nn.LSTM(width, width, 2, batch_first=True),
            nn.Linear(width, words),
        )

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0]).flatten(0, 1)


class Shapes(nn.Module):
    """The parameters of ResNet-50 without its computation: one product per weight, so that a
    step is mostly the exchange."""

    def __init__(self):
        super().__init__()
        shapes, width = [(64, 3, 7, 7)], 64
        for blocks, inner in ((3, 64), (4, 128), (6, 256), (3, 512)):
            for block in range(blocks):
                shapes += [(inner, width, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)]
                shapes += [(4 * inner, width, 1, 1)] if block == 0 else []
                width = 4 * inner
        self.weights = nn.ParameterList(
            [nn.Parameter(0.01 * torch.randn(shape)) for shape in [*shapes, (1000, 2048)]]
        )

    def forward(self, x):
        return sum((weight * x).square().mean() for weight in self.weights).reshape(1, 1)


def mlp():
    return nn.Sequential(
        nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10)
    )


def problem(name, rank):
    """A model and its loss in one step."""
    generator = torch.Generator().manual_seed(rank)
    if name == "mlp":
        x, y = (
            torch.randn(128, 64, generator=generator),
            torch.randint(10, (128,), generator=generator),
        )
        return mlp, lambda model: nn.functional.cross_entropy(model(x), y)
    if name == "lstm":
        tokens = torch.randint(5000, (4, 17), generator=generator)
        return Lstm, lambda model: nn.functional.cross_entropy(
            model(tokens[:, :-1]), tokens[:, 1:].flatten()
        )
    scale = 1.0 + 0.1 * rank
    return Shapes, lambda model: model(scale).sum()


def contender(name, make, bucket_mb, **ddp_options):
    torch.manual_seed(0)
    model = make()
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, **ddp_options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    kind, _, text = name.partition(" ")
    handle = (
        thinwire.attach(ddp, optimizer, scheme=text, check_every=0) if kind == "thinwire" else None
    )
    if text == "fp16" and not handle:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif text.startswith("powersgd") and not handle:
        rank = int(text.partition("rank=")[2] or 1)
        ddp.register_comm_hook(
            powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=rank, start_powerSGD_iter=2
            ),
            powerSGD_hook.powerSGD_hook,
        )
    return ddp, optimizer, handle


def train(one, loss_of):
    ddp, optimizer, _ = one
    optimizer.zero_grad()
    loss_of(ddp).backward()
    optimizer.step()


def take_turns(field, step, steps):
    """The steps of each contender: (seconds, seconds of processor time)."""
    names, taken = list(field), {name: [] for name in field}
    dist.barrier()
    for turn in range(steps):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            begin, used = time.perf_counter(), time.process_time()
            step(field[name])
            taken[name].append((time.perf_counter() - begin, time.process_time() - used))
    return taken


def work(rank, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), THINWIRE_LOG="warning")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=options.workers)
    make, loss_of = problem(options.model, rank)
    # PyTorch's PowerSGD over Gloo aborts with several buckets (docs/notebook/design.md).
    bucket_mb = 1000 if any("powersgd" in name for name in options.contenders) else 25
    field = {name: contender(name, make, bucket_mb) for name in options.contenders}
    take_turns(field, lambda one: train(one, loss_of), 4)
    rounds = [
        take_turns(field, lambda one: train(one, loss_of), options.steps)
        for _ in range(options.rounds)
    ]
    if rank == 0:
        show(options, rounds)
    dist.barrier()
    dist.destroy_process_group()


def fastest(steps):
    return statistics.mean(sorted(steps)[: max(1, len(steps) // 20)])


def median_within(values):
    """The median and its 95 % interval, from the binomial distribution of the number of values
    below it."""
    values, middle, wide = sorted(values), (len(values) - 1) / 2, 0.98 * len(values) ** 0.5
    return (
        values[max(0, math.floor(middle - wide))],
        statistics.median(values),
        values[min(len(values) - 1, math.ceil(middle + wide))],
    )


def measured(names, rounds):
    """One row per contender, relative to the first."""
    rows = []
    for name in names:
        (walls, cpus), (base_walls, base_cpus) = (
            zip(*[step for one in rounds for step in one[who]]) for who in (name, names[0])
        )
        low, middle, high = median_within(
            [mine / theirs for mine, theirs in zip(walls, base_walls)]
        )
        rows.append(
            {
                "contender": name,
                "seconds_per_step": statistics.median(walls),
                "ratio": middle,
                "ratio_low": low,
                "ratio_high": high,
                "ratio_of_fastest": fastest(walls) / fastest(base_walls),
                "cpu_seconds_per_step": statistics.median(cpus),
                "cpu_ratio": statistics.median(cpus) / statistics.median(base_cpus),
            }
        )
    return rows


def text_of(row):
    return (
        f"x{row['ratio']:6.3f}  ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})   fastest "
        f"x{row['ratio_of_fastest']:6.3f}   "
        f"processor x{row['cpu_ratio']:6.3f}"
    )


def show(options, rounds):
    rows = measured(options.contenders, rounds)
    print(
        f"{options.model}, {options.workers} workers over Gloo, {options.rounds} rounds of "
        f"{options.steps} steps; ratio to {options.contenders[0]}"
    )
    for row in rows:
        print(f"  {row['contender']:28} {1e3 * row['seconds_per_step']:9.3f} ms   {text_of(row)}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {
                    "model": options.model,
                    "workers": options.workers,
                    "torch": torch.__version__,
                    "rows": rows,
                },
                file,
                indent=1,
            )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["mlp", "lstm", "resnet50"], default="mlp")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=0, help="steps per block; default: by model")
    parser.add_argument(
        "--contenders",
        nargs="*",
        help="'plain [NOTE]', 'torch fp16', 'torch powersgd:rank=2', or 'thinwire SCHEME'",
    )
    parser.add_argument("--json")
    options = parser.parse_args()
    options.steps = options.steps or {"mlp": 50, "lstm": 3, "resnet50": 3}[options.model]
    options.contenders = options.contenders or (
        ["plain", "plain again", "thinwire dense"]
        if options.model == "mlp"
        else [
            "plain",
            "thinwire dense",
            "torch fp16",
            "thinwire fp16",
            "torch powersgd:rank=2",
            "thinwire powersgd:rank=2",
            "thinwire dgc",
        ]
    )
    torch.multiprocessing.spawn(work, (options, free_port()), options.workers)


if __name__ == "__main__":
    main()
