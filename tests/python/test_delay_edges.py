"""test_delay_edges: edge cases of delayed averaging: the same training, or an error on every
rank; never a silent divergence."""

# SPDX-License-Identifier: Apache-2.0
import copy
import gc
import os

import pytest
import torch
import torch.distributed as dist
import thinwire
from test_delay import attached
from workers import loss_of, net, run, same_everywhere, sgd, train, weights, wrap

nn = torch.nn


def refuses(*parts, kind=Exception):
    return pytest.raises(kind, match=".*".join(parts))


def unchanged(model, action, *parts):
    """The action fails with this text, and no weight has changed."""
    before = weights(model)
    with refuses(*parts):
        action()
    assert torch.equal(weights(model), before)


# -- which parameters are averaged


def frozen(rank, world, ddp):
    """Frozen parameters start equal, are compared, and raise an error when they are
    trained later."""
    module = net(seed=rank)
    module[0].weight.requires_grad_(False)
    module.register_buffer("count", torch.tensor([rank, 7]))
    optimizer = sgd(module)
    model = wrap(module) if ddp else module
    handle = thinwire.attach(model, optimizer, scheme="dense", delay=2)
    assert same_everywhere(weights(module)) and int(module.count[0]) == 0
    train(model, optimizer, rank, range(3))
    handle.check_replicas()

    module[0].weight.requires_grad_(True)
    unchanged(module, lambda: train(model, optimizer, rank, [3]), "'0.weight' was frozen", "detach")
    module[0].weight.requires_grad_(False)
    module[0].weight.grad = torch.ones_like(module[0].weight)
    unchanged(module, optimizer.step, "moves parameter '0.weight'")
    module[0].weight.grad = None
    extra = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [extra]})
    extra.sum().backward()
    unchanged(module, optimizer.step, "shape .3,. that is not the model's")
    optimizer.param_groups.pop()
    module[2].weight.requires_grad_(False)  # its own updates are 0 from here on
    train(model, optimizer, rank, range(4, 8))
    module[2].weight.requires_grad_(True)
    train(model, optimizer, rank, range(8, 10))
    handle.drain()
    assert same_everywhere(weights(module))
    if rank == 1:
        module[0].weight.data[0, 0] += 1
    with refuses("'0.weight' of rank 1"):
        handle.check_replicas()
    module[0].weight.data.zero_()
    handle.detach()

    module[0].weight.requires_grad_(True)  # does what the error says
    again = thinwire.attach(model, optimizer, scheme="dense", delay=2)
    train(model, optimizer, rank, range(10, 14))
    again.drain()
    assert same_everywhere(weights(module)) and module[0].weight.any()


@pytest.mark.parametrize("ddp", [False, True])
def test_frozen_parameters(ddp):
    run(2, frozen, ddp)


def covered(rank, world):
    """Half an optimizer, other tensors, shared weights, and parameters that DDP was
    told to ignore."""
    model = net()
    for part, wrong in (
        ("are not in the optimizer: '2.weight'", sgd(model[0])),
        ("one optimizer, got 2", [sgd(model[0]), sgd(model[2])]),
    ):
        unchanged(model, lambda: thinwire.attach(model, wrong, scheme="dense", delay=2), part)
    taken = sgd(model)
    taken.param_groups[0]["thinwire_momentum"] = [0.9, False]
    unchanged(model, lambda: thinwire.attach(model, taken, delay=2), "holds this optimizer's")
    outer = nn.Sequential(wrap(model))
    unchanged(model, lambda: thinwire.attach(outer, sgd(model), delay=2), "wrapped in DDP")

    optimizer = sgd(model)
    handle = thinwire.attach(model, [optimizer], scheme="dense", delay=2)
    for other in (wrap(model), model[2], model):
        with refuses("attached already"):
            thinwire.attach(other, sgd(other), scheme="dense", delay=2)
    with refuses("attached already"):
        thinwire.attach(wrap(model), sgd(model), scheme="dense")
    bias = model[0].bias.data.clone()
    model[0].bias.data.add_(1)
    unchanged(model, lambda: train(model, optimizer, rank, [0]), "'0.bias' has changed", "load")
    model[0].bias.data = bias  # other memory, with the same values
    train(model, optimizer, rank, range(3))
    model.half()
    unchanged(model, optimizer.step, "'4.bias' has become", "Half")
    model.float()
    weight, model[0].weight = model[0].weight, nn.Parameter(torch.zeros(32, 20))
    for call in (handle.drain, handle.check_replicas, handle.state_dict, handle.anchor().__enter__):
        with refuses("other parameters", "'0.weight'"):
            call()
    model[0].weight = weight
    handle.detach()

    tied = net()
    tied[4] = nn.Linear(32, 32, bias=False)
    tied[4].weight = tied[2].weight
    optimizer = sgd(tied)
    handle = thinwire.attach(tied, optimizer, scheme="dense", delay=2)
    train(tied, optimizer, rank, range(6))
    handle.drain()
    assert same_everywhere(weights(tied)) and tied[4].weight is tied[2].weight

    own = net()
    own._ddp_params_and_buffers_to_ignore = ["0.bias"]
    ddp, optimizer = wrap(own), sgd(own)
    handle = thinwire.attach(ddp, optimizer, scheme="dense", delay=2)
    train(ddp, optimizer, rank, range(6))
    handle.drain()
    assert not same_everywhere(own[0].bias.detach()) and same_everywhere(own[0].weight.detach())
    handle.check_replicas()


def test_what_is_averaged():
    run(2, covered)


# -- drains, anchors, and the end


def drained(rank, world, form, correction):
    """The same bits with book b too, twice; training continues from there, also after a load."""
    options = {"scheme": "topk", "density": 0.05, "delay": 3, "correction": correction}
    model, optimizer, handle = attached(form, **options)
    train(model, optimizer, rank, range(8))
    for _ in range(2):
        handle.drain()
        assert same_everywhere(weights(model))
        with handle.anchor():
            shown = weights(model)
        assert torch.equal(weights(model), shown)
    saved = copy.deepcopy([optimizer.state_dict(), handle.state_dict()])
    train(model, optimizer, rank, range(8, 14))
    other, other_optimizer, other_handle = attached(form, **options)
    other_optimizer.load_state_dict(saved[0])
    other_handle.load_state_dict(saved[1])
    train(other, other_optimizer, rank, range(8, 14))
    assert torch.equal(weights(other), weights(model)) and not same_everywhere(weights(model))
    handle.drain(), other_handle.drain()
    assert same_everywhere(weights(model)) and torch.equal(weights(other), weights(model))


@pytest.mark.parametrize("form,correction", [("sgd", "ledger:book=b"), ("adamw", "soft:book=b")])
def test_after_a_drain_weights_are_the_same_bits(form, correction):
    run(2, drained, form, correction)


def handles():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def comes_and_goes(rank, world):
    """Nothing stays open after detach, even with a callback and with the handle still
    referenced."""
    model = net()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=4.0)
    kept, counts = [], []
    gc.disable()
    for _ in range(6):
        handle = thinwire.attach(model, optimizer, scheme="dgc", delay=3, scaler=scaler)
        handle.on_step(lambda report: handle.report())
        train(model, optimizer, rank, range(2))
        handle.detach()
        kept.append(handle)
        dist.barrier()
        counts.append(handles())
    assert counts[1] == counts[-1], counts
    assert [handle.report().steps for handle in kept] == [2] * 6 and handle.in_flight == 0
    for call in (
        handle.drain,
        handle.state_dict,
        handle.check_replicas,
        handle.anchor().__enter__,
        lambda: handle.load_state_dict({}),
    ):
        with refuses("detach", kind=thinwire.Error):
            call()
    train(model, optimizer, rank, range(2, 4))  # trains alone

    other = net()
    other_optimizer = sgd(other)
    first = thinwire.attach(model, optimizer, scheme="dense", delay=0, scaler=scaler)
    second = thinwire.attach(other, other_optimizer, scheme="dense", delay=0, scaler=scaler)
    first.detach()
    scaler.scale(loss_of(other, rank, 0) * float("inf")).backward()
    scaler.step(other_optimizer)
    assert second.report().skipped == 1 and first.report().steps == 0
    second.detach()
    scaler.update()
    before = weights(model)
    optimizer.zero_grad()
    scaler.scale(loss_of(model, rank, 0)).backward()
    scaler.step(optimizer)
    assert not torch.equal(before, weights(model))


def test_attach_and_detach_leave_nothing_open():
    run(2, comes_and_goes)


def anchors(rank, world):
    """Nested, with steps, drains and errors inside, and buffers that were replaced in between."""
    module = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    optimizer = sgd(module)
    handle = thinwire.attach(module, optimizer, scheme="dense", delay=2)
    train(module, optimizer, rank, range(4))
    module[1].running_mean = module[1].running_mean + rank
    own = weights(module), module[1].running_mean.clone()
    with pytest.raises(KeyError), handle.anchor():
        shown = weights(module)
        assert same_everywhere(shown) and same_everywhere(module[1].running_mean)
        for call in (
            handle.drain,
            handle.detach,
            handle.state_dict,
            handle.anchor().__enter__,
            lambda: handle.load_state_dict({}),
            lambda: train(module, optimizer, rank, [0]),
        ):
            with refuses("leave `with"):
                call()
        assert torch.equal(shown, weights(module))
        raise KeyError
    assert torch.equal(own[0], weights(module)) and torch.equal(own[1], module[1].running_mean)

    def shout(report):
        raise KeyError(report.step)

    handle.on_step(shout)
    with pytest.raises(KeyError, match="5"):
        train(module, optimizer, rank, [4])  # the step itself is done
    handle._callbacks.clear()
    train(module, optimizer, rank, [5])
    handle.drain()
    assert same_everywhere(weights(module)) and handle.report().steps == 6


def test_inside_the_anchor():
    run(2, anchors)


# -- states


def states(rank, world):
    options = {"scheme": "topk:density=0.1", "delay": 4}
    model, optimizer, handle = attached(**options)
    kept = []
    for step in range(9):
        kept.append(copy.deepcopy([optimizer.state_dict(), handle.state_dict()]))
        train(model, optimizer, rank, [step])
    optimizer_state, state = kept[8]

    other, other_optimizer, other_handle = attached(model=net(seed=3), **options)

    def refused(given, *parts):
        entries = other_handle.state_dict()["entries"]
        unchanged(other, lambda: other_handle.load_state_dict(given), *parts)
        assert all(
            torch.equal(torch.as_tensor(value), torch.as_tensor(entries[name]))
            for name, value in other_handle.state_dict()["entries"].items()
        )

    refused(state, "load it first")
    other_optimizer.load_state_dict(optimizer_state)
    refused(kept[8 - rank][1], "rank 0: step 8; rank 1: step 7", "no rank has loaded")
    refused({} if rank == 1 else state, "rank 1: refused" if rank == 0 else "version")
    lame = copy.deepcopy(state)
    del lame["entries"]["2.weight/own"]
    refused(lame if rank == 0 else state, "2.weight/own" if rank == 0 else "rank 0: refused")
    refused({**state, "layout": [[*state["layout"][0], "gone"]]}, "only in the state: \\['gone'\\]")
    refused({**state, "rank": 1 - rank}, "rank")
    synchronous = thinwire.attach(wrap(third := net()), sgd(third), scheme="dense")
    refused(synchronous.state_dict(), "without delay=")
    for early in (5, 8, 2, 8):  # again, also with fewer messages in flight
        other_handle.load_state_dict(kept[early][1])
    train(other, other_optimizer, rank, [8])
    assert torch.equal(weights(other), weights(model))
    with refuses("has taken 1"):
        other_handle.load_state_dict(state)
    handle.drain(), other_handle.drain()
    assert torch.equal(weights(other), weights(model))

    fourth, _, alone = attached(model=net(seed=5), **options)
    if rank == 0:
        load = lambda: alone.load_state_dict(kept[0][1])  # noqa: E731
        unchanged(fourth, load, "rank 1 has called drain")
    else:
        unchanged(fourth, alone.drain, "rank 0 has called load_state_dict")


def test_states_that_do_not_fit_change_nothing():
    run(2, states)


def formats(rank, world):
    """Saved channels_last and loaded contiguous, and the reverse; strides of sizes 1; maximize."""

    def made(form, odd):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(32, 3), nn.Linear(1, 5))
        module[3].weight = nn.Parameter(torch.ones(1, 5).t() if odd else torch.ones(5, 1))
        if odd:
            module.to(memory_format=torch.channels_last)
        kind = torch.optim.SGD if form == "sgd" else torch.optim.AdamW
        extra = {"momentum": 0.9, "nesterov": True, "maximize": True} if form == "sgd" else {}
        optimizer = kind(module.parameters(), lr=0.01, weight_decay=0.1, **extra)
        return module, optimizer, thinwire.attach(module, optimizer, scheme="dense", delay=3)

    def steps(module, optimizer, numbers):
        for step in numbers:
            x = torch.randn(4, 4, 4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
            optimizer.zero_grad()
            (module[:3](x).square().mean() + module[3](x[0, 0, :, :1]).square().mean()).backward()
            optimizer.step()

    for form in ("sgd", "adamw"):
        for odd in (False, True):
            module, optimizer, handle = made(form, odd)
            steps(module, optimizer, range(6))
            saved = copy.deepcopy([optimizer.state_dict(), handle.state_dict()])
            steps(module, optimizer, range(6, 12))
            other, other_optimizer, other_handle = made(form, not odd)
            other_optimizer.load_state_dict(saved[0])
            other_handle.load_state_dict(saved[1])
            steps(other, other_optimizer, range(6, 12))
            torch.testing.assert_close(weights(other), weights(module), rtol=1e-4, atol=1e-6)
            handle.detach(), other_handle.detach()
            torch.testing.assert_close(weights(other), weights(module), rtol=1e-4, atol=1e-6)


def test_states_do_not_know_memory_formats():
    run(2, formats)


def left_alone(rank, world):
    """Programs that would make workers drift apart, or train without any averaging."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme="dense", delay=2)
    train(ddp, optimizer, rank, range(4))
    optimizer.zero_grad()
    loss_of(ddp, rank, 4).backward()
    with pytest.raises(RuntimeError, match="this worker alone wait for step"):
        handle.detach()  # DDP has not averaged these gradients, and would not notice the step
    optimizer.step()
    other = sgd(model)
    train(ddp, other, rank, [5])
    with pytest.raises(RuntimeError, match="another SGD.*nothing is averaged"):
        train(ddp, other, rank, [6])
    train(ddp, optimizer, rank, [7])
    handle.detach()
    assert same_everywhere(weights(model))
    train(ddp, sgd(model), rank, range(8, 11))  # any optimizer may step it again
    assert same_everywhere(weights(model))


def test_nobody_trains_alone_without_a_word():
    run(2, left_alone)


def nested(rank, world):
    """torch calls the hooks again when a step calls that of its base: it is one step."""

    class Same(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    found = []
    for kind in (torch.optim.SGD, Same):
        model = net()
        optimizer = kind(model.parameters(), lr=0.1, momentum=0.9)
        handle = thinwire.attach(model, optimizer, scheme="dense", delay=3)
        train(model, optimizer, rank, range(6))
        assert handle.report().steps == 6
        handle.drain()
        found.append(weights(model))
    assert torch.equal(*found)


def test_a_step_inside_a_step_counts_once():
    run(2, nested)
