"""simulate_cuda: a step of eight virtual workers of ResNet-20 on a GPU, as it is and recorded by
torch.cuda.make_graphed_callables, beside the eight passes without thinwire.

    PYTHONPATH=build/cuda/python python bench/simulate_cuda.py [--device cpu] [--steps 40]

Workers have 32 made-up images each. Times are means by the clock, after 5 steps. On the CPU nothing
is recorded.
"""

# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import time

os.environ.setdefault("THINWIRE_LOG", "warning")
import thinwire  # noqa: E402
import torch  # noqa: E402
from delay_cuda import resnet20  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

WORKERS, BATCH = 8, 32


def milliseconds(scheme, recorded, device, steps):
    """Per step; without a scheme that of the passes and the optimizer alone."""
    torch.manual_seed(0)
    model = resnet20()[0].to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=device == "cuda")
    x = torch.randn(WORKERS * BATCH, 3, 32, 32, device=device)
    y = torch.randint(10, (len(x),), device=device)
    if recorded:
        model = torch.cuda.make_graphed_callables(model, (x[:BATCH].clone(),))
    sim = thinwire.simulate(model, optimizer, WORKERS, scheme) if scheme else None

    def step():
        optimizer.zero_grad()
        shares = sim.shares((x, y)) if sim else enumerate(zip(x.split(BATCH), y.split(BATCH)))
        for _, (images, classes) in shares:
            cross_entropy(model(images), classes).backward()
        optimizer.step()

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(5):
        step()
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return 1e3 * (time.perf_counter() - start) / steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    for scheme in (None, "dense", "dgc"):
        for recorded in (False, True)[:1 + (options.device == "cuda")]:
            time_of = milliseconds(scheme, recorded, options.device, options.steps)
            print(f"{scheme or 'passes alone':12}  {'recorded' if recorded else 'as it is':8}  "
                  f"{time_of:8.2f} ms per step", flush=True)


if __name__ == "__main__":
    main()
