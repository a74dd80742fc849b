"""Step time of DDP on one GPU with a scheme of thinwire, against plain DDP in the same run.

    python bench/ddp_cuda.py [--batches 64,256] [--schemes dgc,bf16] [--steps 30] [--rounds 3]
                             [--views on,off] [--trace [dgc,...]]

A world of one over NCCL: this measures the cost of compression, not the network. torchvision's
ResNet-50, bf16 autocast, synthetic images, SGD with momentum. Each time is the median of single
steps by CUDA events on the compute stream, of the round with the lowest median; rounds alternate.
"host" is the median time in which the host issues a step. With a batch of 2 the device is never
the limit, and it is all that counts.

Besides schemes, --schemes takes "builtin", DDP with torch's own all-reduce hook in C++ (what any
hook costs). "+copies" behind a scheme leaves it to DDP to copy gradients into its buckets, "+fused"
takes torch's fused SGD, with which the host need not know whether a step was skipped. --views says
what gradient_as_bucket_view is. Rows are compared with plain DDP of the same optimizer and views.
The learning rate is tiny and the data repeat, so that gradients stay as they are at the start.
With --trace, CUPTI (torch.profiler) then counts per step: kernels, those of thinwire by name, the
host's calls of CUDA by name with their time, and those in which it waits for the device.
"""

# SPDX-License-Identifier: Apache-2.0
import argparse
import collections
import os
import statistics
import time

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire import _handle


WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


class Run:
    def __init__(self, name, batch, views):
        scheme, *how = name.split("+")
        torch.manual_seed(0)
        model = torchvision.models.resnet50().cuda()
        self.model = DistributedDataParallel(model, device_ids=[0], gradient_as_bucket_view=views)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-5, momentum=0.9,
                                         fused="fused" in how)
        if scheme == "builtin":
            self.model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        elif scheme:
            _handle.FILL = "copies" not in how
            thinwire.attach(self.model, self.optimizer, scheme=scheme, check_every=0)
        self.images = torch.randn(4, batch, 3, 224, 224, device="cuda")
        self.labels = torch.randint(1000, (4, batch), device="cuda")
        self.steps = 0

    def step(self):
        turn = self.steps % len(self.images)
        self.steps += 1
        with torch.autocast("cuda", torch.bfloat16):
            outputs = self.model(self.images[turn])
            loss = torch.nn.functional.cross_entropy(outputs, self.labels[turn])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def medians(self, steps):
        """Of a step on the device, and of the host."""
        for _ in range(3):
            self.step()
        torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        times = [time.perf_counter()]
        for event in events[:-1]:
            event.record()
            self.step()
            times.append(time.perf_counter())
        events[-1].record()
        torch.cuda.synchronize()
        device = statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:]))
        host = statistics.median(1000 * (b - a) for a, b in zip(times, times[1:]))
        return device, host

    def trace(self, steps=5):
        for _ in range(5):
            self.step()
        torch.cuda.synchronize()
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            for _ in range(steps):
                self.step()
        counts, ours, waits = 0, collections.Counter(), collections.Counter()
        calls, spent = collections.Counter(), collections.Counter()
        for event in profile.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                counts += 1
                if "thinwire" in event.name:
                    ours[event.name.split("(")[0].split("<")[0].split("::")[-1]] += 1
                continue
            if event.name in WAITS:
                waits[event.name] += 1
            if event.name.startswith("cuda"):
                calls[event.name] += 1
                spent[event.name] += event.time_range.elapsed_us()
        print(f"    per step: {counts / steps:.1f} kernels and copies, "
              f"{sum(ours.values()) / steps:.1f} kernels of thinwire; waits of the host in {steps} "
              f"steps: {dict(waits) or 'none'}")
        for name, count in sorted(ours.items()):
            print(f"        {name} {count / steps:g}")
        for name, count in calls.most_common(10):
            print(f"        {name} {count / steps:g}, {spent[name] / steps:.0f} us")


def compare(batch, views, arguments):
    schemes = arguments.schemes.split(",")
    names = ["", *(["+fused"] if any("+fused" in name for name in schemes) else []), *schemes]
    runs = {name: Run(name, batch, views == "on") for name in names}
    best = dict.fromkeys(names, (float("inf"), float("inf")))
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            best[name] = min(best[name], run.medians(arguments.steps))
    for name in names:
        (device, host), plain = best[name], best["+fused" if "+fused" in name else ""][0]
        print(f"{batch:>6} {views:<5} {name if name[:1] > '+' else 'plain DDP' + name:<15} "
              f"{device:>12.2f} {device / plain:>12.3f}x {host:>9.2f}", flush=True)
        if arguments.trace == "all" or name in (arguments.trace or "-").split(","):
            runs[name].trace()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", default="64,256")
    parser.add_argument("--schemes", default="dgc,bf16")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--views", default="on")
    parser.add_argument("--trace", nargs="?", const="all")
    arguments = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("nccl", rank=0, world_size=1)
    print(f"{'batch':>6} {'views':<5} {'scheme':<15} {'ms per step':>12} {'of plain DDP':>13} "
          f"{'host, ms':>9}")
    for views in arguments.views.split(","):
        for batch in (int(text) for text in arguments.batches.split(",")):
            compare(batch, views, arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
