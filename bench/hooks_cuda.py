"""The time of DDP's communication hooks alone on one GPU: PyTorch's beside thinwire's, in one run.

    python bench/hooks_cuda.py [--models resnet50,vgg16] [--schemes fp16,bf16,powersgd:rank=1,...]
                               [--rounds 3] [--steps 8]

A world of one over NCCL, so nothing travels: this is the cost of compression, with DDP's buckets.
A backward that computes nothing adds ready gradients to them, and there is no optimizer. For each
scheme plain DDP, PyTorch's hook and ours take blocks of steps in turn; a time is the median of
single steps, by CUDA events on the compute stream and by the clock of the host, of the block with
the lowest median. `hook` is a step less plain DDP's of the same scheme.
"""

# SPDX-License-Identifier: Apache-2.0
import argparse
import math
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import thinwire


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


def vgg16():
    shapes, width = [], 3
    for out in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512):
        shapes += [(out, width, 3, 3), (out,)]
        width = out
    for matrix in ((4096, 25088), (4096, 4096), (1000, 4096)):
        shapes += [matrix, matrix[:1]]
    return shapes


MODELS = {"resnet50": resnet50, "vgg16": vgg16}


class Ready(torch.autograd.Function):
    """A model whose gradients are ready in advance."""

    @staticmethod
    def forward(ctx, gradients, *parameters):
        ctx.gradients = gradients
        return torch.zeros((), device="cuda")

    @staticmethod
    def backward(ctx, _):
        return (None, *ctx.gradients)


class Model(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        generator = torch.Generator("cuda").manual_seed(1)
        self.weights = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros(shape, device="cuda")) for shape in shapes])
        self.gradients = [0.01 * torch.randn(shape, generator=generator, device="cuda")
                          for shape in shapes]

    def forward(self):
        return Ready.apply(self.gradients, *self.weights)


def torch_hook(ddp, scheme):
    name, _, rank = scheme.partition(":rank=")
    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(rank or 1),
                                            start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
        ddp.register_comm_hook(None, hooks[name])


class Contender:
    def __init__(self, kind, shapes, scheme):
        self.ddp = DistributedDataParallel(Model(shapes), gradient_as_bucket_view=True)
        if kind == "torch":
            torch_hook(self.ddp, scheme)
        elif kind == "thinwire":
            self.handle = thinwire.attach(self.ddp, None, scheme=scheme, check_every=0)
        self.best = (math.inf, math.inf)

    def step(self):
        self.ddp.zero_grad(set_to_none=False)  # they are views of the buckets and must stay
        self.ddp().backward()

    def block(self, steps):
        """Medians of single steps, in ms: of the compute stream, and of the host to its end."""
        events, host = [], []
        self.step()
        torch.cuda.synchronize()
        for _ in range(steps):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            clock = time.perf_counter()
            begin.record()
            self.step()
            end.record()
            end.synchronize()
            host.append(1e3 * (time.perf_counter() - clock))
            events.append(begin.elapsed_time(end))
        self.best = min(self.best, (statistics.median(events), statistics.median(host)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="resnet50,vgg16")
    parser.add_argument("--schemes",
                        default="fp16,bf16,powersgd:rank=1,powersgd:rank=2,powersgd:rank=4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29513")
    dist.init_process_group("nccl", rank=0, world_size=1)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}; ms per step by events "
          "(by the host's clock); `hook` is what plain DDP does not take")
    print(f"{'model':<9} {'scheme':<17} {'plain DDP':>16} {'PyTorch':>16} {'thinwire':>16} "
          f"{'hook':>8} {'ours':>8} {'times':>6}")
    for name in arguments.models.split(","):
        for scheme in arguments.schemes.split(","):
            shapes = MODELS[name]()
            field = {kind: Contender(kind, shapes, scheme)
                     for kind in ("plain", "torch", "thinwire")}
            for _ in range(4):  # DDP rebuilds its buckets; PowerSGD begins with step 2
                for one in field.values():
                    one.step()
            for _ in range(arguments.rounds):
                for one in field.values():
                    one.block(arguments.steps)
            plain, theirs, ours = (one.best for one in field.values())
            texts = [f"{by_events:.2f} ({by_host:.2f})"
                     for by_events, by_host in (plain, theirs, ours)]
            hooks = theirs[0] - plain[0], ours[0] - plain[0]
            times = f"{hooks[0] / hooks[1]:.1f}" if hooks[1] > 0 else "-"
            print(f"{name:<9} {scheme:<17} {texts[0]:>16} {texts[1]:>16} {texts[2]:>16} "
                  f"{hooks[0]:>8.2f} {hooks[1]:>8.2f} {times:>6}", flush=True)
            del field
            torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
