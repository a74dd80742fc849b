"""Delayed averaging on one GPU: does a step wait for the link, and what runs beside the optimizer?

    python bench/delay_cuda.py [--latencies 0,20,100,200] [--models resnet20,transformer]
                               [--schemes dense,dgc] [--steps 60] [--rounds 2] [--json FILE]
    python bench/delay_cuda.py --profile [--optimizers sgd,fused,adamw] [--schemes dense,dgc]
                               [--json FILE]

The first form has two workers. Their messages pass through pinned memory, Gloo and an emulated link
of 100 Gbit/s with that latency; D covers it. Rank 0 trains on the GPU, which it has to itself: rank
1 only steps with constant gradients, on the CPU, by the form of delayed averaging that stands in
for a device there. So its anchor shows, too, that both devices have the same bits. A time is rank
0's, per step: the median of single steps by CUDA events in the training's stream, and the mean by
the clock of all steps, of the best of the rounds; rounds alternate. `alone` is the same training
without thinwire.

The second form is one worker with ResNet-50 (25.6 M parameters). torch.profiler (CUPTI) lists the
kernels per step: those of the optimizer, and those of thinwire in the training's stream and in
others. A worker alone measures a share of 1, with which the pass over the weights moves 24 bytes
per element; --correction soft:share=0.5 shows that of 20.
"""

# SPDX-License-Identifier: Apache-2.0
import argparse
import collections
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing

import thinwire
from thinwire import _connection

DELAY = 40
SCHEMES = {"dense": {"scheme": "dense"}, "bf16": {"scheme": "bf16"},
           "dgc": {"scheme": "dgc", "density": 0.01, "momentum": 0.0}}


class Block(torch.nn.Module):
    def __init__(self, into, out, stride):
        super().__init__()
        self.a = torch.nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.b = torch.nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.na, self.nb = torch.nn.BatchNorm2d(out), torch.nn.BatchNorm2d(out)
        self.stride, self.more = stride, out - into

    def forward(self, x):
        y = self.nb(self.b(torch.relu(self.na(self.a(x)))))
        x = x[:, :, ::self.stride, ::self.stride]
        return torch.relu(y + torch.nn.functional.pad(x, (0, 0, 0, 0, 0, self.more)))


def resnet20():
    blocks = [Block(into, out, stride) for into, out, stride in
              [(16, 16, 1)] * 3 + [(16, 32, 2), (32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1),
                                   (64, 64, 1)]]
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, 1, 1, bias=False),
                                torch.nn.BatchNorm2d(16), torch.nn.ReLU(), *blocks,
                                torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
                                torch.nn.Linear(64, 10))
    return model, torch.randn(512, 3, 32, 32), 10


def transformer():
    layer = torch.nn.TransformerEncoderLayer(192, 4, 768, 0.0, batch_first=True, norm_first=True)
    model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False),
                                torch.nn.Linear(192, 96))
    return model, torch.randn(256, 256, 192), 96


class Training:
    def __init__(self, name, rank):
        torch.manual_seed(0)
        model, data, self.classes = {"resnet20": resnet20, "transformer": transformer}[name]()
        device = "cuda" if rank == 0 else "cpu"
        self.model, self.data, self.rank = model.to(device), data.to(device), rank
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9,
                                         fused=True)
        shape = data.shape[:-1] if data.dim() == 3 else data.shape[:1]
        self.labels = torch.randint(self.classes, shape, device=device)
        self.given = [torch.full_like(one, 1e-4) for one in self.model.parameters()]

    def step(self):
        if self.rank == 1:
            for one, given in zip(self.model.parameters(), self.given):
                one.grad = given
            return self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            out = self.model(self.data).flatten(0, -2)
        torch.nn.functional.cross_entropy(out.float(), self.labels.flatten()).backward()
        self.optimizer.step()

    def timed(self, warmup, steps):
        for _ in range(warmup + (steps if self.rank == 1 else 0)):
            self.step()
        if self.rank == 1:
            return 0.0, 0.0
        torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        begin = time.perf_counter()
        for event in events[:-1]:
            event.record()
            self.step()
        events[-1].record()
        torch.cuda.synchronize()
        mean = 1e3 * (time.perf_counter() - begin) / steps
        return statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:])), mean


def worker(rank, port, options, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), THINWIRE_LOG="warning")
    if rank == 0:
        torch.cuda.set_device(0)
    else:
        os.environ["THINWIRE_THREADS"] = "6"
        torch.set_num_threads(6)
        _connection.STREAMS = True
    dist.init_process_group("gloo", rank=rank, world_size=2)
    rows = []
    for model in options.models.split(","):
        for scheme in options.schemes.split(","):
            best, waited, ratio = {}, {}, 1.0
            for _ in range(options.rounds):
                for latency in ["alone", *map(int, options.latencies.split(","))]:
                    training = Training(model, rank)
                    dist.barrier()
                    if latency == "alone":
                        found = training.timed(10, options.steps if rank == 0 else 0)
                    else:
                        _connection.LINK = f"100gbit,{latency}ms"
                        handle = thinwire.attach(training.model, training.optimizer, delay=DELAY,
                                                 **SCHEMES[scheme])
                        found = training.timed(DELAY + 10, options.steps)
                        report = handle.report()
                        waited[latency] = 1e3 * report.wait_seconds / report.steps
                        ratio = report.ratio
                        handle.drain()
                        handle.check_replicas()
                        handle.detach()
                    best[latency] = min(best.get(latency, (1e9, 1e9)), found)
            for latency, (median, mean) in best.items():
                rows.append({"model": model, "scheme": scheme, "latency_ms": latency,
                             "median_ms": median, "mean_ms": mean,
                             "host_waited_ms": waited.get(latency, 0.0), "ratio": ratio})
            if rank == 0:
                show(rows[-len(best):])
    if rank == 0:
        with open(results, "w") as file:
            json.dump(rows, file)
    dist.destroy_process_group()


def show(rows):
    for row in rows:
        print(f"{row['model']:12} {row['scheme']:6} latency {row['latency_ms']!s:>5} ms: "
              f"{row['median_ms']:7.3f} ms per step (mean {row['mean_ms']:7.3f}), "
              f"host waited {row['host_waited_ms']:.3f}", flush=True)
    for name in ("median_ms", "mean_ms"):
        times = [row[name] for row in rows if row["latency_ms"] != "alone"]
        alone = next(row[name] for row in rows if row["latency_ms"] == "alone")
        low, high = (100 * (time / alone - 1) for time in (min(times), max(times)))
        print(f"{rows[0]['model']:12} {rows[0]['scheme']:6} {name}: spread over latencies "
              f"{100 * (max(times) / min(times) - 1):.1f} %, over training alone {low:+.1f} to "
              f"{high:+.1f} %", flush=True)


def profile(options):
    import torchvision

    torch.cuda.set_device(0)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29501", THINWIRE_LOG="warning")
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    images = torch.randn(64, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (64,), device="cuda")
    rows = []
    kinds = {"sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
             "fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
             "adamw": lambda p: torch.optim.AdamW(p, lr=0.001, fused=True)}
    for kind in options.optimizers.split(","):
        make = kinds[kind]
        for scheme in options.schemes.split(","):
            if kind == "adamw" and scheme == "dgc":
                continue
            torch.manual_seed(0)
            model = torchvision.models.resnet50().cuda()
            optimizer = make(model.parameters())

            def step():
                optimizer.zero_grad()
                with torch.autocast("cuda", torch.bfloat16):
                    loss = torch.nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()

            def timed(steps=12):
                events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
                for event in events[:-1]:
                    event.record()
                    step()
                events[-1].record()
                torch.cuda.synchronize()
                return statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:]))

            timed(4)
            alone = timed()
            free = torch.cuda.mem_get_info()[0]
            handle = thinwire.attach(model, optimizer, delay=4, correction=options.correction,
                                     check_every=0, **SCHEMES[scheme])
            timed(8)
            memory = free - torch.cuda.mem_get_info()[0]
            late = timed()
            rows += kernels(step, kind, scheme, alone, late, memory)
            handle.detach()
            del model, optimizer, handle
            torch.cuda.empty_cache()
    dist.destroy_process_group()
    return rows


def kernels(step, kind, scheme, alone, late, memory, steps=5):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        found.export_chrome_trace(file.name)
        events = json.load(open(file.name))["traceEvents"]
    waits = sum(event.get("name") in ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")
                for event in events)
    work = [event for event in events if event.get("cat") == "kernel"]
    streams = collections.Counter(event["args"]["stream"] for event in work)
    main = streams.most_common(1)[0][0]
    sums = collections.defaultdict(lambda: [0, 0.0])
    for event in work:
        name, here = event["name"], event["args"]["stream"] == main
        if "thinwire" in name:
            short = name.split("(anonymous namespace)::")[-1].split("(")[0].split("<")[0]
            key = ("ours, training's stream" if here else "ours, other streams", short)
        elif "LpNorm" in name or "lpnorm" in name.lower():
            key = ("check of gradients, training's stream", "foreach_norm")
        elif "multi_tensor_apply" in name or "Fused" in name:
            key = ("optimizer", "all")
        else:
            continue
        sums[key][0] += 1
        sums[key][1] += event["dur"]
    title = {"optimizer": kind, "scheme": scheme, "alone_ms": alone, "late_ms": late,
             "memory_bytes": memory, "waits_per_step": waits / steps}
    print(f"-- ResNet-50, batch 64, bf16 autocast, {kind}, {scheme}, D = 4: {alone:.3f} ms alone, "
          f"{late:.3f} ms late ({100 * (late / alone - 1):+.1f} %); {memory / 25557032:.1f} bytes "
          f"per parameter; host waits per step {waits / steps:.1f}", flush=True)
    rows = []
    for (where, name), (count, total) in sorted(sums.items()):
        print(f"{where:40} {name:28} {count / steps:5.1f} launches {total / steps:8.1f} us "
              "per step", flush=True)
        rows.append({**title, "where": where, "kernel": name, "launches": count / steps,
                     "us": total / steps})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latencies", default="0,20,100,200")
    parser.add_argument("--models", default="resnet20,transformer")
    parser.add_argument("--schemes", default="dense,dgc")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--optimizers", default="sgd,fused,adamw")
    parser.add_argument("--correction", default="soft")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.profile:
        rows = profile(options)
    else:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            torch.multiprocessing.spawn(worker, (29517, options, file.name), nprocs=2)
            rows = json.load(open(file.name))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                       "delay": DELAY, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
