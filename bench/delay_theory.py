#!/usr/bin/env python3
"""delay_theory.py: delayed averaging on a quadratic, where everything can be calculated. Prints
the largest eta * lambda at which each correction is stable, and how far gradient noise drives the
workers apart: the tables of docs/notebook/delay.md. Needs numpy; takes a minute.

One step of a worker with curvature l (times eta), momentum m, share s and pace p, in the words of
docs/notebook/delay.md:
    v = m v + l w + noise;  u = -v;  w += s u
    due += mean u(then) - s u(then);  w += p due;  due -= p due
The workers' mean sees mean u = u, their deviations from it see mean u = 0. pull: w += rate (mean
w(then) - w(then)).
"""

import numpy as np

FLAT = 1e-4
CURVATURES = np.concatenate([np.geomspace(1e-3, 0.3, 800), np.arange(0.3, 7.5, 0.01)])


def ledger(momentum, delay, curvature, share, pace, of_mean=False):
    """The effect of a step on (w, v, due, u of the last D steps), and the effect of a
    unit of noise."""
    unit = np.eye(3 + delay)
    v = momentum * unit[1] + curvature * unit[0]
    due = unit[2] + (of_mean - share) * unit[-1]
    step = np.vstack([unit[0] - share * v + pace * due, v, (1 - pace) * due, -v, unit[3:-1]])
    return step, -share * unit[0] + unit[1] - unit[3]


def pull(momentum, delay, curvature):
    """The same for (w, v, w of the last D steps) of the deviations."""
    unit = np.eye(2 + delay)
    v = momentum * unit[1] + curvature * unit[0]
    step = np.vstack([unit[0] - v - 0.4 / delay * unit[-1], v, unit[0] - v, unit[2:-1]])
    return step, -unit[0] + unit[1] - unit[2]


def limit(steps_of):
    """The lowest curvature at which a step has an eigenvalue beyond 1."""
    for curvature in CURVATURES:
        if any(np.abs(np.linalg.eigvals(step)).max() > 1 + 1e-7 for step, _ in steps_of(curvature)):
            return curvature
    return np.inf


def variance(step, noise):
    total, state = 0, noise
    for _ in range(20000):
        total += state[0] ** 2
        state = step @ state
    return total


def fedavg_variance(momentum, local_steps):
    """The mean over a round. Workers keep their momentum when they average."""
    total = 0
    for phase in range(local_steps):
        w = v = 0.0
        for step in range(phase, phase + 500):
            v = momentum * v + FLAT * w + (step == phase)
            w = 0.0 if step % local_steps == local_steps - 1 else w - v
            total += w * w / local_steps
    return total


print(
    "stable up to eta lambda    ledger      pull  share=0.5  share=1  share=0.4   deviation, flat "
    "   ledger    pull  share=0.5  share=1  FedAvg"
)
for momentum in (0, 0.5, 0.9):
    for delay in (5, 10, 20):
        pace = min(2 / delay, (1 - momentum) / 2)

        def both(share, pace):
            return lambda curvature: [
                ledger(momentum, delay, curvature, share, pace, of_mean)
                for of_mean in (False, True)
            ]

        limits = [
            limit(both(1, 1)),
            limit(lambda curvature: [pull(momentum, delay, curvature)]),
        ] + [limit(both(s, pace)) for s in (0.5, 1, 0.4)]
        noise = (1 - momentum) ** 2  # as if eta were 1 - momentum
        spread = [
            variance(*ledger(momentum, delay, FLAT, 1, 1)),
            variance(*pull(momentum, delay, FLAT)),
            variance(*ledger(momentum, delay, FLAT, 0.5, pace)),
            variance(*ledger(momentum, delay, FLAT, 1, pace)),
            fedavg_variance(momentum, delay),
        ]
        print(
            f"momentum {momentum:3}, D = {delay:2}"
            + " " * 5
            + "".join(f"{value:10.3f}" for value in limits)
            + " " * 12
            + "".join(f"{noise * value:9.2f}" for value in spread),
            flush=True,
        )
