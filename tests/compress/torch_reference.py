#!/usr/bin/env python3
# torch_reference.py: runs PyTorch's own communication hooks (PowerSGD, fp16, bf16) in DDP over two
# Gloo processes, and its topk, on gradients given by a formula. It writes the results to
# torch_reference.txt, with which torch_reference_test.cc compares ours.
# Usage: .venv/bin/python tests/compress/torch_reference.py
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import struct
import sys
import tempfile
import types

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
SHAPES = {"w1": (20, 32), "w2": (20, 32), "conv": (12, 3, 3, 3), "bias": (12,), "small": (3, 4)}
STEPS = 50
KEPT = (0, 9, 49)
WARMUP = 2  # the hook accepts no less; it averages plainly until then
MASK = (1 << 64) - 1


def random_unit(seed, counter):  # thinwire/core/random.h
    z = (seed * 0xD1342543DE82EF95 + (counter + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return ((z ^ (z >> 31)) >> 40) * 2.0**-24


# A drift of the given rank, constant over the steps, plus a little noise for each worker and step.
# With stronger noise, rounding would decide the direction of the iteration. Computed in double,
# rounded once.
def gradient(parameter, rank, step, terms):
    shape = list(SHAPES.values())[parameter]
    cols = max(1, torch.Size(shape).numel() // shape[0])
    noise = 1000 * (step + 1) + 10 * rank
    values = []
    for i in range(torch.Size(shape).numel()):
        drift = 0.0
        for t in range(terms):
            a = random_unit(2 * t, 100 * parameter + i // cols) - 0.5
            drift += a * (random_unit(2 * t + 1, 100 * parameter + i % cols) - 0.5) * 0.5**t
        values.append(drift + 0.0078125 * (random_unit(noise + parameter, i) - 0.5))
    return torch.tensor(values, dtype=torch.float32).view(shape)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, gradients):
        return sum((p * g).sum() for p, g in zip(self.parameters(), gradients))


def pattern(values):
    return "".join(struct.pack(">f", v).hex() for v in values)


def write(out, key, tensor):
    values = tensor.reshape(-1).tolist()
    out.write(f"{key} {len(values)}\n")
    for at in range(0, len(values), 16):
        out.write(pattern(values[at : at + 16]) + "\n")


def average(model, rank, step, terms):
    model.zero_grad()
    model([gradient(i, rank, step, terms) for i in range(len(SHAPES))]).backward()


# The hook's initial state: it makes each Q orthonormal before its first use, in bucket order, shape
# by shape.
class FirstQ:
    def __init__(self, names):
        self.names, self.seen, self.real = names, {}, powerSGD_hook._orthogonalize
        self.order, self.offsets = [], {}

    def __call__(self, matrices, epsilon=0):
        self.real(matrices, epsilon)
        if len(self.seen) < len(self.order):
            self.seen[self.order[len(self.seen)]] = matrices[0].clone()

    def note(self, bucket, rank):
        by_shape, at = {}, 0
        for parameter in bucket.parameters():
            rows, cols = parameter.shape[0], parameter.numel() // parameter.shape[0]
            r = min(rows, cols, rank)
            if (rows + cols) * r * 2 < rows * cols:
                by_shape.setdefault((rows, cols), []).append(self.names[parameter.data_ptr()])
            self.offsets[self.names[parameter.data_ptr()]] = slice(at, at + parameter.numel())
            at += parameter.numel()
        self.order = [name for names in by_shape.values() for name in names]


# The state draws a seed from NumPy and needs nothing else from it; our environment has no NumPy.
def make_state(matrix_rank):
    numpy = types.ModuleType("numpy")
    numpy.random = types.SimpleNamespace(
        RandomState=lambda seed: types.SimpleNamespace(randint=lambda high: 4711 + seed)
    )
    kept = sys.modules.get("numpy")
    sys.modules["numpy"] = numpy
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=matrix_rank, start_powerSGD_iter=WARMUP
    )
    del sys.modules["numpy"]
    if kept:
        sys.modules["numpy"] = kept
    return state


def run_powersgd(rank, matrix_rank, out):
    model = Model()
    ddp = DistributedDataParallel(model)
    first = FirstQ({p.data_ptr(): name for name, p in model.named_parameters()})
    powerSGD_hook._orthogonalize = first
    state = make_state(matrix_rank)

    def hook(state, bucket):
        if state.iter == WARMUP:
            first.note(bucket, matrix_rank)
        return powerSGD_hook.powerSGD_hook(state, bucket)

    ddp.register_comm_hook(state, hook)
    for step in range(-WARMUP, STEPS):
        average(ddp, rank, max(step, 0), matrix_rank)
        if rank == 0 and step in KEPT:
            for name, parameter in model.named_parameters():
                write(out, f"powersgd.{matrix_rank}.step{step}.{name}", parameter.grad)
    powerSGD_hook._orthogonalize = first.real
    if rank == 0:
        for name, q in first.seen.items():
            write(out, f"powersgd.{matrix_rank}.q.{name}", q.t().contiguous())
            write(
                out,
                f"powersgd.{matrix_rank}.error.{name}",
                state.error_dict[0][first.offsets[name]],
            )


def run_cast(rank, name, hook, out):
    model = Model()
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(
        None, lambda group, bucket: hook(group, bucket)
    )  # DDP rejects bf16's own name without NCCL
    average(ddp, rank, 0, 1)
    if rank == 0:
        write(out, f"{name}.w1", model.w1.grad)


def run_topk(out):
    x = gradient(0, 0, 0, 1).view(-1)
    chosen = torch.topk(x.abs(), 32).indices.sort().values
    write(out, "topk.indices", chosen.float())
    write(out, "topk.values", x[chosen])


def worker(rank, meeting, target):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    with open(target if rank == 0 else os.devnull, "w") as out:
        if rank == 0:
            out.write(f"# torch {torch.__version__}, written by torch_reference.py\n")
            run_topk(out)
        run_cast(rank, "fp16", default_hooks.fp16_compress_hook, out)
        run_cast(rank, "bf16", default_hooks.bf16_compress_hook, out)
        for matrix_rank in (1, 2, 3):
            run_powersgd(rank, matrix_rank, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    target = pathlib.Path(__file__).with_suffix(".txt")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(folder + "/meet", str(target)), nprocs=WORLD)
