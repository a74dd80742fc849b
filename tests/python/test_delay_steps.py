"""test_delay_steps: delayed averaging in unusual steps: ranks that differ, updates that
overflow, errors in mid-step, wrapped models."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.distributed as dist
import thinwire
from test_delay import FORMS, attached
from test_delay_edges import refuses, unchanged
from workers import loss_of, net, run, same_everywhere, sgd, train, weights, wrap

nn = torch.nn


def differ(rank, world):
    """Ranks that attach differently get an error, and keep their weights."""
    for mine, part in (
        ({"local_steps": 2, "delay": 4}, "delay=4"),
        ({"check_every": 7}, "every=7"),
        ({"correction": "none"}, "correction=none"),
    ):
        model = net(seed=rank)
        options = {"scheme": "dense", "delay": 2, **(mine if rank == 1 else {})}
        unchanged(model, lambda: thinwire.attach(model, sgd(model), **options), "rank", part)
    model = net(seed=rank)
    if rank == 1:
        model[2].bias.requires_grad_(False)
    unchanged(model, lambda: thinwire.attach(model, sgd(model), delay=2), "'2.bias'", "frozen")


def test_ranks_attach_alike():
    run(2, differ)


def huge(rank, world, scheme):
    """A finite step that is far too large ends with an error on all ranks, not silently."""
    model, optimizer, handle = attached(scheme=scheme, delay=2, timeout=20)
    train(model, optimizer, rank, range(4))
    optimizer.zero_grad()
    loss_of(model, rank, 4).backward()
    if rank == 0:
        model[2].weight.grad.fill_(3e38)
    with refuses("parameter '2.weight'" if rank == 0 else "another worker's update", "diverged"):
        optimizer.param_groups[0]["lr"] = 10.0
        optimizer.step()
        train(model, optimizer, rank, range(5, 12))


@pytest.mark.parametrize("scheme", ["dense", "dgc:density=0.1", "int8"])
def test_an_update_that_overflows_is_an_error(scheme):
    run(2, huge, scheme)


def void(rank, world):
    """A NaN step leaves nothing in weights, momentum or messages, like an empty step."""
    results = []
    for poison in (False, True):
        model, optimizer, handle = attached(scheme="topk:density=0.1", delay=2)
        train(model, optimizer, rank, range(3))
        optimizer.zero_grad()
        if poison and rank == 1:
            (loss_of(model, rank, 3) * 1e20).backward()
            model[0].bias.grad[0] = float("nan")
        optimizer.step()  # with a NaN, or without any gradient
        optimizer.zero_grad()
        optimizer.step()  # twice without a backward
        train(model, optimizer, rank, range(4, 10))
        assert handle.report().skipped == (poison and rank == 1)
        handle.drain()
        results.append(weights(model))
    assert torch.equal(*results)


def fails(rank, world):
    """An optimizer that raises in mid-step; a fused one under a scaler; a parameter used late."""
    model, optimizer, handle = attached(delay=2)
    train(model, optimizer, rank, range(2))
    optimizer.zero_grad()
    loss_of(model, rank, 2).backward()
    good, optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"], "fast"
    with pytest.raises(Exception):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = good
    optimizer.step()
    assert handle.report().steps == 3
    handle.drain()
    assert same_everywhere(weights(model))

    model = net()
    optimizer = sgd(model, lr=0.1, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    handle = thinwire.attach(model, optimizer, scheme="dense", delay=2, scaler=scaler)
    plain = net()
    plain_optimizer = sgd(plain, lr=0.1, weight_decay=0.01)
    plain_handle = thinwire.attach(plain, plain_optimizer, scheme="dense", delay=2)
    for step in range(6):
        for one in (optimizer, plain_optimizer):
            one.zero_grad()
        poison = float("inf") if (step, rank) == (3, 1) else 1
        scaler.scale(loss_of(model, rank, step) * poison).backward()
        scaler.step(optimizer)
        scaler.update()
        (loss_of(plain, rank, step) * poison).backward()
        plain_optimizer.step()
    assert handle.report().skipped == plain_handle.report().skipped == rank
    handle.drain(), plain_handle.drain()
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-4, atol=1e-5)

    model = net()
    optimizer = FORMS["adamw"](model)
    handle = thinwire.attach(model, optimizer, scheme="dense", delay=2)
    for step in range(40):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        if rank == 1:
            model[4].bias.grad = None
            if step < 30:
                model[2].weight.grad = None
        optimizer.step()
        if step == 30:  # rank 1 starts with the others' moments
            moments = [torch.empty(32, 32) for _ in range(world)]
            dist.all_gather(moments, optimizer.state[model[2].weight]["exp_avg_sq"])
            assert moments[1].sum() > 0.5 * moments[0].sum()
    handle.detach()  # gathers a moment that a rank never used, too
    for parameter in model.parameters():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert same_everywhere(optimizer.state[parameter][key])


def test_steps_that_fail():
    run(2, void)
    run(2, fails)


def wrappers(rank, world):
    """torch.compile around a module or a DDP, and Accelerate's optimizer."""
    expected = None
    for kind in ("plain", "compiled", "compiled ddp", "ddp of compiled"):
        module = net()
        optimizer = sgd(module)
        model = wrap(module, bucket_cap_mb=25) if kind == "compiled ddp" else module
        model = torch.compile(model, backend="eager") if "compiled" in kind else model
        model = wrap(model) if kind == "ddp of compiled" else model
        handle = thinwire.attach(model, optimizer, scheme="dense", delay=2)
        train(model, optimizer, rank, range(5))
        assert not same_everywhere(weights(module)), kind
        assert handle.state_dict()["layout"][0][-1] == "0.weight", kind
        with refuses("attached already"):
            thinwire.attach(module, sgd(module), scheme="dense", delay=2)
        handle.detach()
        expected = weights(module) if expected is None else expected
        torch.testing.assert_close(weights(module), expected)
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    module = net()
    optimizer = accelerator.prepare_optimizer(sgd(module))
    handle = thinwire.attach(module, optimizer, scheme="dense", delay=2)
    train(module, optimizer, rank, range(5))
    assert handle.report().steps == 5
    handle.detach()
    torch.testing.assert_close(weights(module), expected)


def test_wrapped_models_and_optimizers():
    run(2, wrappers)
