"""test_void: one batch whose loss explodes. Plain DDP under a GradScaler skips it and continues;
so does every scheme with memory."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import thinwire
from workers import batch, net, run, same_everywhere, sgd, weights, wrap

SCHEMES = (
    None,
    "dense",
    "dgc:density=0.05",
    "topk:density=0.05",
    "powersgd",
    "onebit",
    "int8",
    "csc",
    "signum",
)
STEPS, HUGE_STEP = 40, 8


def loss_at(ddp, rank, step, huge):
    """In one step, on rank 1, biases have gradients of 1e16, weights have some of 1e37 and some
    that overflow."""
    x, y = batch(rank, step)
    explodes = huge and (step, rank) == (HUGE_STEP, 1)
    return torch.nn.functional.cross_entropy(ddp(x * (3e23 if explodes else 1)), y) * (
        1e12 if explodes else 1
    )


def train_scaled(scheme, rank, huge):
    """The weights, the mean loss of the last steps, the scale, and the number of skipped steps."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model, lr=0.002 if scheme == "signum" else 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10**6)
    handle = thinwire.attach(ddp, optimizer, scheme=scheme, scaler=scaler) if scheme else None
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_at(ddp, rank, step, huge)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return (
        weights(model),
        sum(losses[-8:]) / 8,
        scaler.get_scale(),
        handle.report().skipped if handle else int(huge),
    )


def one_huge_batch(rank, world, scheme):
    expected, usual, scale, skipped = train_scaled(scheme, rank, huge=False)
    assert (scale, skipped) == (2.0**16, 0)
    result, loss, scale, skipped = train_scaled(scheme, rank, huge=True)
    assert torch.isfinite(result).all() and same_everywhere(result)
    assert (scale, skipped) == (2.0**15, 1), (
        "the scaler lowers its scale once, and no later step is skipped"
    )
    assert result.abs().max() < 2 * expected.abs().max() and loss < 1.2 * usual


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_one_huge_batch(scheme):
    run(2, one_huge_batch, scheme)
