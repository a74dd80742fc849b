"""Step time of DDP on one GPU with a scheme of thinwire, against plain DDP in the same run.

    python bench/ddp_cuda.py [--batches 64,256] [--schemes dgc,bf16] [--steps 30] [--rounds 3]
                             [--trace]

A world of one over NCCL: this measures the cost of compression, not the network. torchvision's
ResNet-50, bf16 autocast, synthetic images, SGD with momentum. Each time is the median of single
steps by CUDA events on the compute stream, of the round with the lowest median; rounds alternate.
With --trace, CUPTI (torch.profiler) then counts per step: kernels, those of thinwire by name, and
the calls in which the host waits for the device.
"""

# SPDX-License-Identifier: Apache-2.0
import argparse
import collections
import os
import statistics

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

import thinwire


WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


class Run:
    def __init__(self, scheme, batch):
        torch.manual_seed(0)
        model = torchvision.models.resnet50().cuda()
        self.model = DistributedDataParallel(model, device_ids=[0], gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.handle = None
        if scheme:
            self.handle = thinwire.attach(self.model, self.optimizer, scheme=scheme, check_every=0)
        self.images = torch.randn(batch, 3, 224, 224, device="cuda")
        self.labels = torch.randint(1000, (batch,), device="cuda")

    def step(self):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(self.images), self.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def median(self, steps):
        for _ in range(5):
            self.step()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        for event in events[:-1]:
            event.record()
            self.step()
        events[-1].record()
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:]))

    def trace(self, steps=10):
        for _ in range(5):
            self.step()
        torch.cuda.synchronize()
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            for _ in range(steps):
                self.step()
        counts, ours, waits = 0, collections.Counter(), collections.Counter()
        for event in profile.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                counts += 1
                if "thinwire" in event.name:
                    ours[event.name.split("(")[0].split("<")[0].split("::")[-1]] += 1
            elif event.name in WAITS:
                waits[event.name] += 1
        print(f"    per step: {counts / steps:.1f} kernels and copies, "
              f"{sum(ours.values()) / steps:.1f} kernels of thinwire; waits of the host in {steps} "
              f"steps: {dict(waits) or 'none'}")
        for name, count in sorted(ours.items()):
            print(f"        {name} {count / steps:g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", default="64,256")
    parser.add_argument("--schemes", default="dgc,bf16")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trace", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("nccl", rank=0, world_size=1)
    print(f"{'batch':>6} {'scheme':<12} {'ms per step':>12} {'of plain DDP':>13}")
    for batch in (int(text) for text in arguments.batches.split(",")):
        names = ["", *arguments.schemes.split(",")]
        runs = {name: Run(name, batch) for name in names}
        best = dict.fromkeys(names, float("inf"))
        for _ in range(arguments.rounds):
            for name, run in runs.items():
                best[name] = min(best[name], run.median(arguments.steps))
        for name in names:
            share = best[name] / best[""]
            print(f"{batch:>6} {name or 'plain DDP':<12} {best[name]:>12.2f} {share:>12.3f}x")
            if arguments.trace:
                runs[name].trace()
        del runs
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
