"""test_optimizers: the optimizers beside a handle: several, wrapped and sharded ones, momentum
schedulers, clipping."""

# SPDX-License-Identifier: Apache-2.0
import copy
import logging

import pytest
import torch
import thinwire
from torch.distributed.optim import ZeroRedundancyOptimizer
from workers import loss_of, net, run, same_everywhere, sgd, train, weights, wrap

EXACT = "dgc:density=1,mask=off,values=f32"


def close(got, wanted, what, most=1e-5):
    error = float((got - wanted).abs().max() / wanted.abs().max())
    assert error < most, f"{what}: {error:.1e} off"


class Both:
    """Steps two optimizers as one, for train()."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def halves(model, **options):
    first = torch.optim.SGD(model[0].parameters(), **{"lr": 0.1, "momentum": 0.9, **options})
    second = torch.optim.SGD(
        [*model[2].parameters(), *model[4].parameters()],
        **{"lr": 0.05, "momentum": 0.9, "weight_decay": 0.05, **options},
    )
    return first, second


def two(rank, world):
    results = []
    for attached in (False, True):
        model = net()
        ddp, optimizers = wrap(model), halves(model)
        train(ddp, Both(*optimizers), rank, range(3))
        if attached:
            handle = thinwire.attach(ddp, list(optimizers), scheme=EXACT, check_every=2)
            handle.schedule({3: "dense", 6: EXACT})
        train(ddp, Both(*optimizers), rank, range(3, 12))
        if attached:
            assert handle.scheme.startswith("dgc")
            handle.detach()
        train(ddp, Both(*optimizers), rank, range(12, 15))
        results.append(weights(model))
    close(results[1], results[0], "two optimizers")


def test_two_optimizers_are_as_one():
    run(2, two)


def void_for_both(rank, world):
    model = net()
    ddp, optimizers = wrap(model), (
        torch.optim.SGD(model[0].parameters(), lr=0.1, weight_decay=0.1),
        torch.optim.Adam([*model[2].parameters(), *model[4].parameters()], lr=0.01),
    )
    handle = thinwire.attach(ddp, list(optimizers), scheme="powersgd")
    train(ddp, Both(*optimizers), rank, range(3))
    before = weights(model)
    train(ddp, Both(*optimizers), rank, [3], poison={(3, 1)})
    assert torch.equal(before, weights(model)) and handle.report().skipped == 1


def test_a_void_step_is_one_for_all_optimizers():
    run(2, void_for_both)


def in_turn(rank, world):
    """One of two optimizers at a time, as in a GAN: the work after a step happens once per step."""
    model = net()
    ddp, optimizers = wrap(model), halves(model)
    handle = thinwire.attach(ddp, optimizers, scheme="dgc:density=0.1", check_every=0)
    handle.schedule({step: {"density": 0.2 + step / 100} for step in range(1, 9)})
    seen = []
    for step in range(8):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        optimizers[step % 2].step()
        seen.append(handle.scheme)
    assert len(set(seen)) == 8 or len(set(seen[1:])) == 7, seen
    assert same_everywhere(weights(model))


def test_after_a_step_of_one_of_two():
    run(2, in_turn)


def uncovered(rank, world):
    model = net()
    ddp, (first, second) = wrap(model), halves(model)
    for scheme in ("dgc", "powersgd", "dense"):
        with pytest.raises(
            ValueError, match="'2.weight', '2.bias', '4.weight' and 1 more.*none of the optimizers"
        ):
            thinwire.attach(ddp, first, scheme=scheme)
        with pytest.raises(ValueError, match="'0.weight'.*two of the optimizers"):
            thinwire.attach(ddp, [first, second, sgd(model[0])], scheme=scheme)
        with pytest.raises(ValueError, match="empty"):
            thinwire.attach(ddp, [], scheme=scheme)
    with pytest.raises(TypeError, match="int"):
        thinwire.attach(ddp, [first, 3])
    with pytest.raises(ValueError, match="one optimizer"):
        thinwire.attach(ddp, [first, second], scheme="dgc", delay=2)
    with pytest.raises(ValueError, match="'2.weight'.*none"):
        thinwire.HookState("dgc", model=model, optimizer=first)
    extra = torch.nn.Parameter(
        torch.ones(3)
    )  # belongs to the optimizer but not to the model: it keeps its momentum
    own = torch.optim.SGD([*model.parameters(), extra], lr=0.1, momentum=0.9)
    handle = thinwire.attach(ddp, own, scheme="dgc:density=0.1")
    for step in range(3):
        own.zero_grad()
        loss_of(ddp, rank, step).backward()
        extra.grad = torch.ones(3)
        own.step()
    torch.testing.assert_close(extra.detach(), torch.full((3,), 1 - 0.1 * (1 + 1.9 + 2.71)))
    other = wrap(net())
    with pytest.raises(RuntimeError, match="another handle"):
        thinwire.attach(wrap(model), own, scheme="dgc")
    handle.detach()
    thinwire.attach(wrap(model), own, scheme="dgc").detach()
    del other


def test_optimizers_cover_what_is_averaged():
    run(2, uncovered)


def one_for_two_models(rank, world):
    """Two handles, one optimizer: each takes over the momentum of its own parameters."""
    results = []
    for attached in (False, True):
        models = [net(seed=1), net(seed=2)]
        ddps = [wrap(model) for model in models]
        optimizer = torch.optim.SGD(
            [*models[0].parameters(), *models[1].parameters()],
            lr=0.1,
            momentum=0.9,
            weight_decay=0.01,
        )
        if attached:
            handles = [thinwire.attach(ddp, optimizer, scheme=EXACT) for ddp in ddps]
        for step in range(8):
            optimizer.zero_grad()
            (loss_of(ddps[0], rank, step) + loss_of(ddps[1], rank, step)).backward()
            optimizer.step()
            if attached and step == 4:
                handles[0].detach()
        results.append(torch.cat([weights(model) for model in models]))
    close(results[1], results[0], "one optimizer for two models")


def test_one_optimizer_for_two_models():
    run(2, one_for_two_models)


def cycles(rank, world, form):
    results = []
    for attached in (False, True):
        model = net()
        ddp = wrap(model)
        if form == "groups":
            groups = [
                {"params": model[0].parameters(), "momentum": 0.5},
                {"params": model[2].parameters(), "weight_decay": 0.05},
                {"params": model[4].parameters(), "momentum": 0.0},
            ]
            optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        else:
            optimizer = sgd(model, weight_decay=0.05, nesterov=form == "nesterov")
        train(ddp, optimizer, rank, range(2))
        scheduler = (
            torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
            if form != "groups"
            else None
        )
        if attached:
            handle = thinwire.attach(ddp, optimizer, scheme=EXACT)
        for step in range(2, 14):
            train(ddp, optimizer, rank, [step])
            if scheduler:
                scheduler.step()
            if attached and step == 9:
                handle.set_scheme(density=0.999)
                handle.set_scheme(density=1)
        if attached:
            handle.detach()
        train(ddp, optimizer, rank, range(14, 17))
        results.append(weights(model))
    close(results[1], results[0], form)


@pytest.mark.parametrize("form", ["plain", "groups"])
def test_momentum_that_changes_or_differs(form):
    run(2, cycles, form)


def begins_late(rank, world):
    """Momentum that a scheduler raises from 0 begins with the gradient alone, as SGD's does."""
    results = []
    for attached in (False, True):
        model = net()
        ddp, optimizer = wrap(model), sgd(model, lr=0.05, weight_decay=0.05)
        if attached:
            thinwire.attach(ddp, optimizer, scheme=EXACT)
        for step in range(8):
            optimizer.param_groups[0]["momentum"] = 0.0 if step < 4 else 0.5
            train(ddp, optimizer, rank, [step])
        results.append(weights(model))
    close(results[1], results[0], "momentum from 0")


def test_momentum_from_zero():
    run(2, begins_late)


def strangers(rank, world):
    """An optimizer that attach() does not know has momentum of its own."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    thinwire.attach(ddp, optimizer, scheme=EXACT)
    train(ddp, optimizer, rank, range(2))
    other = sgd(model)
    train(ddp, other, rank, [2])  # its momentum begins here, so nothing is wrong yet
    with pytest.raises(RuntimeError, match="another SGD.*wrap the module in DDP anew"):
        train(ddp, other, rank, [3])
    sgd(net()).step()  # another model's


def test_an_optimizer_that_is_not_attached_is_noticed():
    run(2, strangers)


def without_exchange(rank, world):
    """Only gradients that were exchanged have the scheme's momentum."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme=EXACT)
    train(ddp, optimizer, rank, range(2))
    with pytest.raises(RuntimeError, match="without a new exchange"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="without a new exchange"), ddp.no_sync():
        train(ddp, optimizer, rank, [2])
    train(ddp, optimizer, rank, [3])
    handle.set_scheme("dense")
    train(ddp, optimizer, rank, [4])
    with ddp.no_sync():  # the optimizer's momentum takes any gradient
        train(ddp, optimizer, rank, [5])


def test_steps_without_an_exchange_are_noticed():
    run(2, without_exchange)


def wrong_order(rank, world):
    """A scheduler that changes momentum between backward and step, and one that changes
    Nesterov's or signum's."""
    for options, scheme, reason in (
        ({}, "dgc:density=0.1,mask=off", "after optimizer.step"),
        ({}, "dgc:density=0.1", "cannot follow it: give mask=off"),
        ({"nesterov": True}, "dgc:density=0.1", "cannot follow"),
        ({}, "signum", "cannot follow"),
    ):
        model = net()
        ddp, optimizer = wrap(model), sgd(model, **options)
        thinwire.attach(ddp, optimizer, scheme=scheme)
        train(ddp, optimizer, rank, range(1))
        optimizer.zero_grad()
        loss_of(ddp, rank, 1).backward()
        optimizer.param_groups[0]["momentum"] = 0.8
        with pytest.raises(RuntimeError, match=reason):
            optimizer.step()


def test_momentum_that_cannot_be_followed_is_an_error():
    run(2, wrong_order)


def differs(rank, world):
    """A pool has one momentum: the default of dgc's mask is off where groups have several."""
    model = net()
    ddp = wrap(model)
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "momentum": 0.5}, {"params": model[2:].parameters()}],
        lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r"pool has one momentum.*\[0.5, 0.9\].*mask=off"):
        thinwire.attach(ddp, optimizer, scheme="dgc:mask=pool")
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.1")
    assert "mask=off" in repr(handle)
    train(ddp, optimizer, rank, range(3))
    handle.set_scheme("dgc:density=0.1,mask=on")
    assert "mask=on" in repr(handle)


def test_groups_with_several_momenta_have_no_pool():
    run(2, differs)


def sharded(rank, world):
    results = []
    for attached in (False, True):
        model = net()
        ddp = wrap(model)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.05
        )
        train(ddp, optimizer, rank, range(3))
        handle = thinwire.attach(ddp, optimizer, scheme=EXACT) if attached else None
        train(ddp, optimizer, rank, range(3, 7))
        if attached:
            handle.set_scheme("dense")
        train(ddp, optimizer, rank, range(7, 10))
        if attached:
            handle.set_scheme(EXACT)
        train(ddp, optimizer, rank, range(10, 13))
        if attached:
            handle.detach()
        train(ddp, optimizer, rank, range(13, 16))
        results.append(weights(model))
        assert same_everywhere(results[-1])
    close(results[1], results[0], "ZeroRedundancyOptimizer")


def test_zero_redundancy_optimizer():
    run(2, sharded)


def accelerated(rank, world):
    optimizers = pytest.importorskip("accelerate.optimizer")
    import accelerate

    accelerate.Accelerator(cpu=True)
    results = []
    for wrapped in (False, True):
        model = net()
        ddp, optimizer = wrap(model), sgd(model)
        outside = optimizers.AcceleratedOptimizer(optimizer) if wrapped else optimizer
        thinwire.attach(ddp, outside, scheme="dgc:density=0.1")
        train(ddp, outside, rank, range(4))
        results.append(weights(model))
    assert torch.equal(*results)


def test_accelerated_optimizer():
    run(2, accelerated)


def clipped(rank, world):
    lines = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("thinwire").addHandler(handler)
    counts = []
    for clip, scaling, views in (
        (False, False, False),
        (False, True, False),
        (True, False, False),
        (True, False, True),
        (True, True, False),
    ):
        model = net()
        ddp, optimizer = wrap(model, gradient_as_bucket_view=views), sgd(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaling)
        thinwire.attach(ddp, optimizer, scheme="dgc:density=0.05", scaler=scaler)
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(loss_of(ddp, rank, step)).backward()
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            scaler.step(optimizer)
            scaler.update()
        counts.append(sum("clip=" in line for line in lines))
        lines.clear()
    return counts


def test_clipping_of_velocities_is_noticed():
    assert run(2, clipped)[0] == [0, 0, 1, 1, 1]


def shards_resume(rank, world):
    """Saved and loaded under a ZeroRedundancyOptimizer, in either order."""

    def made():
        model = net()
        zero = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.05
        )
        return model, wrap(model), zero

    model, ddp, optimizer = made()
    train(ddp, optimizer, rank, range(8))
    wanted = weights(model)
    model, ddp, optimizer = made()
    handle = thinwire.attach(ddp, optimizer, scheme=EXACT)
    train(ddp, optimizer, rank, range(4))
    optimizer.consolidate_state_dict(to=0)
    saved = [optimizer.state_dict() if rank == 0 else None]
    torch.distributed.broadcast_object_list(saved)
    parts = (model.state_dict(), saved[0], handle.state_dict())
    for handle_first in (False, True):
        model, ddp, optimizer = made()
        model.load_state_dict(parts[0])
        handle = thinwire.attach(ddp, optimizer, scheme=EXACT)
        if handle_first:
            handle.load_state_dict(parts[2])
        optimizer.load_state_dict(copy.deepcopy(parts[1]))
        if not handle_first:
            handle.load_state_dict(parts[2])
        train(ddp, optimizer, rank, range(4, 8))
        close(weights(model), wanted, f"handle first: {handle_first}")


def test_zero_redundancy_optimizer_resumes():
    run(2, shards_resume)
