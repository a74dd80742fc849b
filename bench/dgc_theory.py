#!/usr/bin/env python3
"""dgc_theory.py: at which learning rates dgc is stable, by what a weight that is sent does with its
momentum: the tables of docs/notebook/schemes.md. Needs torch, one core, and half a minute.

The first table is one weight on a parabola that is sent every T steps. Between two sends it stands
still, so its gradient g = lambda w is steady, and (w, u) or (w, pool) goes through a 2 x 2 matrix.
The second is 1000 weights that share three steep directions: each of 4 workers, with noise of its
own, sends the largest of what is due.
"""
import argparse
import cmath

import torch

MASKS = ("on", "off", "pool")


def share_after(momentum, steps):
    """Of the pool, what stays momentum when it is sent after so many steps (thinwire/kernels/
    limit.h)."""
    share = 1.0
    for _ in range(steps):
        share = next_share(momentum, share)
    return share


def next_share(momentum, share):
    return max(momentum * share, min(0.995 * share, 0.5, momentum))


def matrix(mask, m, steps, curvature):
    """Of (w, u) from send to send; for the pool of (w, what stays of it)."""
    if mask == "pool":
        stays = share_after(m, steps)
        gain = curvature * (1 - stays) / (1 - m)
        return 1 - gain * steps, -gain, stays * steps, stays
    decay = m ** steps
    grown = (1 - decay) / (1 - m)  # u after the wait is decay * u + grown * g
    pushed = m * grown             # v is pushed * u + total * g
    total = (steps - pushed) / (1 - m)
    keeps = 0 if mask == "on" else 1
    return 1 - curvature * total, -curvature * pushed, keeps * grown, keeps * decay


def is_stable(mask, m, steps, curvature):
    a, b, c, d = matrix(mask, m, steps, curvature)
    root = cmath.sqrt((a + d) ** 2 - 4 * (a * d - b * c))
    return max(abs(a + d + root), abs(a + d - root)) / 2 <= 1 + 1e-12


def limit(mask, m, steps):
    low, high = 0.0, 8.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(mask, m, steps, middle) else (low, middle)
    return low


def speed(mask, m, steps):
    """The update per step under a steady gradient, where SGD with momentum has 1."""
    if mask != "on":
        return 1.0  # nothing is lost
    pushed = m * (1 - m ** steps) / (1 - m)
    return (steps - pushed) / steps


def train(mask, m, rate, density, steps=600, weights=1000, workers=4, noise=0.02):
    """How far the weights are from the optimum in the steep directions, at the end. They start at
    1.7. The heavy tail makes some weights count for more than others."""
    torch.manual_seed(0)
    directions = torch.linalg.qr(torch.randn(weights, 3) * torch.exp(torch.randn(weights, 1)))[0]
    w = directions @ torch.ones(3)
    count = round(density * weights)
    u, v, share = (torch.full((workers, weights), x) for x in (0.0, 0.0, 1.0))
    far = []
    for _ in range(steps):
        g = directions @ (directions.T @ w) + noise * torch.randn(workers, weights)
        if mask == "pool":  # u is the whole pool here
            u = u + g
            share = torch.maximum(m * share, torch.clamp(0.995 * share, max=min(0.5, m)))
            v = (1 - share) / (1 - m) * u
        else:
            u = m * u + g
            v = v + u
        chosen = torch.topk(v.abs(), count, dim=1).indices
        sent = torch.zeros_like(v).scatter_(1, chosen, v.gather(1, chosen))
        if mask == "pool":
            u = u - (1 - m) * sent
            share.scatter_(1, chosen, 1.0)
        else:
            v.scatter_(1, chosen, 0.0)
            if mask == "on":
                u.scatter_(1, chosen, 0.0)
        w = w - rate * sent.mean(0)
        far.append((directions.T @ w).norm().item())
    return sum(far[-100:]) / 100


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--momentum", type=float, default=0.9)
    m = parser.parse_args().momentum
    torch.set_num_threads(1)
    print("| T | " + " | ".join(f"{mask}: limit, speed" for mask in MASKS) + " |")
    print("|---:|" + "---|" * len(MASKS))
    for steps in (1, 2, 3, 5, 10, 20, 50, 100, 1000):
        cells = [f"{limit(mask, m, steps):.3g}, {speed(mask, m, steps):.2f}" for mask in MASKS]
        print(f"| {steps} | " + " | ".join(cells) + " |")

    rates = (0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6)
    print("\n| density | mask | " + " | ".join(map(str, rates)) + " |")
    print("|---:|---|" + "---:|" * len(rates))
    for density in (1.0, 0.3, 0.1, 0.03, 0.01):
        for mask in MASKS:
            ends = [train(mask, m, rate, density) for rate in rates]
            cells = [f"{end:.3f}" if end < 100 else "diverges" for end in ends]
            print(f"| {density} | {mask} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
