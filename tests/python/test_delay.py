"""test_delay: delayed averaging from Python: one anchor everywhere, whatever the model, the
optimizer and the wrapper; and the return to plain training."""

# SPDX-License-Identifier: Apache-2.0
import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
import thinwire
from workers import batch, loss_of, net, run, same_everywhere, sgd, train, weights, wrap

FORMS = {
    "sgd": lambda model: sgd(model, lr=0.0625, weight_decay=0.01, nesterov=True),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}


def attached(form="sgd", ddp=False, scheme="dense", model=None, **options):
    model = net() if model is None else model
    optimizer = FORMS[form](model)
    outer = wrap(model) if ddp else model
    return outer, optimizer, thinwire.attach(outer, optimizer, scheme=scheme, **options)


def second_moments(optimizer, model):
    return torch.cat(
        [optimizer.state[parameter]["exp_avg_sq"].flatten() for parameter in model.parameters()]
    )


def meets(rank, world, form, ddp, options):
    model, optimizer, handle = attached(form, ddp, **options)
    train(model, optimizer, rank, range(12))
    own = weights(model)
    assert handle.delay == 0 or not same_everywhere(own)
    with handle.anchor():
        assert same_everywhere(weights(model)) and not torch.equal(own, weights(model))
    assert torch.equal(own, weights(model))
    train(model, optimizer, rank, [12])
    assert handle.report().in_flight == handle.in_flight
    handle.drain()
    report = handle.report()
    assert (
        report.steps == 13
        and report.messages == 13 // options.get("local_steps", 1) + 1
        and report.in_flight == 0
    )
    assert same_everywhere(weights(model)) and torch.isfinite(weights(model)).all()
    handle.check_replicas()
    if form == "adamw":
        assert same_everywhere(second_moments(optimizer, model))
    assert report.ratio > 1 or options["scheme"] == "dense"


@pytest.mark.parametrize(
    "world,form,ddp,options",
    [
        (3, "sgd", False, {"scheme": "dense", "delay": 4}),
        (2, "sgd", True, {"scheme": "dgc", "density": 0.05, "delay": 5, "local_steps": 2}),
        (
            2,
            "sgd",
            False,
            {"scheme": "powersgd", "delay": 3, "local_steps": 3, "correction": "pull"},
        ),
        (2, "adamw", False, {"scheme": "dense", "delay": 3, "correction": "ledger"}),
        (2, "adamw", True, {"scheme": "bf16", "delay": 0, "local_steps": 4}),
    ],
    ids=lambda value: value.get("scheme") if isinstance(value, dict) else None,
)
def test_all_workers_have_one_anchor(world, form, ddp, options):
    run(world, meets, form, ddp, options)


def fedavg(rank, world, steps_per_message):
    """Without delay and correction, exact to the bit: x += the mean of the workers' updates.
    Compares with a slow reference."""
    model, optimizer, handle = attached(delay=0, local_steps=steps_per_message, correction="none")
    slow = net()
    slow_optimizer = FORMS["sgd"](slow)
    for first in range(0, 12, steps_per_message):
        steps = range(first, first + steps_per_message)
        before = weights(slow)
        train(slow, slow_optimizer, rank, steps)
        total = weights(slow) - before
        dist.all_reduce(total)
        torch.nn.utils.vector_to_parameters(before + total / world, slow.parameters())
        train(model, optimizer, rank, steps)
        assert torch.equal(weights(model), weights(slow)), (
            f"after {first + steps_per_message} steps"
        )


def synchronous(rank, world):
    """One step per message and no delay: equal to DDP's training up to rounding, if there is no
    momentum that each worker keeps for itself."""
    plain, model = net(), net()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.125) for one in (plain, model)]
    handle = thinwire.attach(model, optimizers[1], scheme="dense", delay=0)
    train(wrap(plain), optimizers[0], rank, range(20))
    train(model, optimizers[1], rank, range(20))
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-4, atol=1e-5)
    handle.drain()


def test_without_delay_it_is_fedavg_and_synchronous_training():
    run(2, fedavg, 3)
    run(2, fedavg, 1)
    run(3, synchronous)


def wrapped(rank, world):
    """DDP's own exchange is off: the same bits as the plain module, also with accumulation,
    closures and BatchNorm, whose statistics stay each worker's own."""
    results = []
    for ddp in (False, True):
        torch.manual_seed(rank)  # rank 0's weights count
        module = torch.nn.Sequential(
            torch.nn.Linear(20, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 10)
        )
        model, optimizer, handle = attached(
            ddp=ddp, model=module, delay=3, scheme="topk", density=0.1
        )
        for step in range(8):

            def closure():
                optimizer.zero_grad()
                with model.no_sync() if ddp else contextlib.nullcontext():
                    (loss_of(model, rank, 2 * step) / 2).backward()
                (loss_of(model, rank, 2 * step + 1) / 2).backward()

            if ddp:
                optimizer.step(closure)
            else:
                closure(), optimizer.step()
        own = module[1].running_mean.clone()
        assert not same_everywhere(own)
        with handle.anchor():
            assert same_everywhere(module[1].running_mean) and same_everywhere(weights(module))
        with handle.anchor(average_buffers=False):
            assert torch.equal(module[1].running_mean, own)
        assert torch.equal(module[1].running_mean, own)
        copy.deepcopy(module)  # it contains nothing of ours
        handle.drain()
        results.append(
            (
                weights(module),
                own,
                {
                    key: getattr(handle.report(), key)
                    for key in ("steps", "messages", "payload_bytes")
                },
            )
        )
    assert (
        torch.equal(results[0][0], results[1][0])
        and torch.equal(results[0][1], results[1][1])
        and results[0][2] == results[1][2]
    )


def test_a_plain_module_and_ddp_give_the_same_bits():
    run(2, wrapped)


def strange(rank, world):
    """Parameters with another memory layout, parameters that moved, and one that rank
    1 never uses."""
    results = []
    for odd in (False, True):
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Conv2d(4, 8, 3),
            torch.nn.Flatten(),
            torch.nn.Linear(8 * 4, 3),
            torch.nn.Linear(3, 3),
        )
        if odd:
            module.to(memory_format=torch.channels_last)
        optimizer = FORMS["adamw"](module)
        handle = thinwire.attach(module, optimizer, scheme="dense", delay=2)
        for step in range(8):
            if odd and step == 4:
                module[2].weight.data = module[2].weight.data.clone()
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            x = torch.randn(4, 4, 4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
            optimizer.zero_grad()
            (module if rank == 0 else module[:3])(x).square().sum().backward()
            optimizer.step()
        assert not odd or not module[0].weight.is_contiguous()
        handle.drain()
        assert same_everywhere(weights(module)) and (module[3].weight in optimizer.state) == (
            rank == 0
        )
        results.append(weights(module))
    torch.testing.assert_close(*results)


def test_parameters_in_odd_places():
    run(2, strange)


def measured(rank, world):
    model, optimizer, handle = attached(delay="auto:9")
    train(model, optimizer, rank, range(30))
    assert 1 <= handle.delay <= 9 and same_everywhere(torch.tensor([float(handle.delay)]))
    handle.drain()


def test_a_measured_delay_is_the_same_everywhere():
    run(2, measured)


def detaches(rank, world, form, options):
    """After that, plain DDP keeps replicas identical: momentum is the same everywhere too."""
    model, optimizer, handle = attached(form, ddp=True, **options)
    train(model, optimizer, rank, range(10))
    handle.detach()
    handle.detach()
    assert same_everywhere(weights(model))
    train(model, optimizer, rank, range(10, 14))
    assert same_everywhere(weights(model)) and handle.report().steps == 10
    thinwire.attach(model, optimizer, scheme="dense", delay=2).detach()  # and again, or
    handle = thinwire.attach(model, optimizer, scheme="bf16")  # ... gradients
    handle.check_replicas()  # a rank that has finished closes its connections


def test_detach_gives_back_plain_ddp():
    run(
        2,
        detaches,
        "sgd",
        {"scheme": "topk", "density": 0.1, "delay": 3, "correction": "ledger:book=b"},
    )
    run(3, detaches, "adamw", {"scheme": "dense", "delay": 2})


def learns(rank, world, scheme):
    """It trains: the same task for all, messages with 1 in 20 values, eight steps late."""
    model, optimizer, handle = attached(scheme=scheme, delay=8, local_steps=2)
    x, y = batch(0, 0, 64)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    handle.drain()
    return float(torch.nn.functional.cross_entropy(model(x), y).detach())


def test_it_learns():
    assert max(run(2, learns, "dgc:density=0.05")) < 0.5
