"""simulate_overhead: what a step of virtual workers costs beyond what it must: N forward and
backward passes, N encodes and one decode.

    PYTHONPATH=build/release/python python bench/simulate_overhead.py

Steps of a plain loop (N backward passes, which is what N shares compute) and of a simulation take
turns, so that both see the same machine. Times are medians, on one thread.
"""

# SPDX-License-Identifier: Apache-2.0
import argparse
import copy
import os
import statistics
import time

os.environ.setdefault("THINWIRE_LOG", "warning")
import thinwire  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

WARM = 3  # steps


def mlp():
    return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(),
                         nn.Linear(1000, 10)), torch.randn(512, 784)


def convolutions():
    layers, before = [], 3
    for width in (64, 128, 256):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                   nn.MaxPool2d(2)]
        before = width
    layers += [nn.Flatten(), nn.Linear(256 * 16, 10)]
    return nn.Sequential(*layers), torch.randn(128, 3, 32, 32)


def lstm():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.LSTM(64, 256, 2, batch_first=True)
            self.head = nn.Linear(256, 10)

        def forward(self, x):
            return self.head(self.cells(x)[0][:, -1])

    return Language(), torch.randn(128, 32, 64)


def measure(make, scheme, workers, steps):
    torch.manual_seed(0)
    model, x = make()
    y = torch.randint(0, 10, (len(x),))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    sim = thinwire.simulate(model, optimizer, workers, scheme)
    loss, parts = nn.CrossEntropyLoss(), list(zip(x.chunk(workers), y.chunk(workers)))

    def coding():
        reports = [one.report() for one in sim._attachments]
        return sum(one["encode_seconds"] + one["decode_seconds"] for one in reports)

    must, took = [], []
    for _ in range(steps + WARM):
        begin = time.perf_counter()
        for inputs, labels in parts:
            plain.zero_grad()
            loss(plain(inputs), labels).backward()
        compute = time.perf_counter() - begin
        optimizer.zero_grad()
        before, begin = coding(), time.perf_counter()
        for _, (inputs, labels) in sim.shares(*parts):
            loss(model(inputs), labels).backward()
        sim.exchange()
        took.append(time.perf_counter() - begin)
        must.append(compute + coding() - before)
        optimizer.step()
    return statistics.median(must[WARM:]), statistics.median(took[WARM:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'model':14}{'scheme':20}{'must, ms':>10}{'took, ms':>10}{'more':>8}")
    for make in (mlp, convolutions, lstm):
        for scheme in ("dense", "dgc:density=0.01", "onebit", "powersgd"):
            must, took = measure(make, scheme, options.workers, options.steps)
            print(f"{make.__name__:14}{scheme:20}{must * 1e3:10.1f}{took * 1e3:10.1f}"
                  f"{took / must - 1:8.1%}", flush=True)


if __name__ == "__main__":
    main()
