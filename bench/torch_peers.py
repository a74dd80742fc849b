"""What plain torch takes on one GPU for the work of dgc's encoder, beside thinwire's own step.

    python bench/torch_peers.py [--density 0.001]

The peers work on one flat buffer, without a loop over parameters, which is the best case for them:
`flat ops` is momentum, residual, a threshold from a sample of 1 %, nonzero and fill; `topk` is
torch.topk of the residual instead. Both leave indices and values in device memory; neither codes
them. Times are medians of 40 steps by CUDA events, after 10; four gradients take turns. thinwire's
encoder is measured by bench/cuda_bench.cu: `make bench-gpu` runs both on the same machine.
"""

# SPDX-License-Identifier: Apache-2.0
import argparse
import statistics

import torch

MODELS = {"ResNet-50": 25_557_032, "AlexNet": 61_100_840, "VGG-16": 138_357_544}


def flat_ops(gradient, u, v, density):
    u.mul_(0.9).add_(gradient)
    v.add_(u)
    magnitude = v.abs()
    sample = magnitude[torch.randint(magnitude.numel(), (magnitude.numel() // 100,),
                                     device=v.device)]
    threshold = sample.topk(max(1, int(sample.numel() * density))).values[-1]
    indices = (magnitude >= threshold).nonzero().squeeze(1)  # its size comes back to the host
    values = v[indices]
    v[indices] = 0
    u[indices] = 0
    return indices, values


def topk(gradient, u, v, density):
    u.mul_(0.9).add_(gradient)
    v.add_(u)
    indices = v.abs().topk(int(v.numel() * density), sorted=False).indices
    values = v[indices]
    v[indices] = 0
    u[indices] = 0
    return indices, values


def median_ms(step, gradients, density, steps=40, warm_up=10):
    u, v = torch.zeros_like(gradients[0]), torch.zeros_like(gradients[0])
    times = []
    for i in range(warm_up + steps):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step(gradients[i % len(gradients)], u, v, density)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[warm_up:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--density", type=float, default=0.001)
    density = parser.parse_args().density
    print(f"{'model':<10} {'flat ops, ms':>13} {'topk, ms':>9}")
    for name, count in MODELS.items():
        gradients = [torch.randn(count, device="cuda") for _ in range(4)]
        times = [median_ms(step, gradients, density) for step in (flat_ops, topk)]
        print(f"{name:<10} {times[0]:>13.3f} {times[1]:>9.3f}")


if __name__ == "__main__":
    main()
