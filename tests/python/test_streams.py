"""test_streams: the way of gradients on CUDA, taken by gradients on the CPU: steps that end for the
host before their outcome is known. Results, states and skipped steps must be those of the usual
way."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import thinwire
from thinwire import _connection
from workers import loss_of, net, run, same_everywhere, sgd, train, weights, wrap

SCHEMES = ["dense", "fp16", "bf16", "topk:density=0.05", "dgc:density=0.05",
           "dgc:density=0.05,clip=0.5"]
POISON = ((4, 1), (5, 0))


def course(rank, world, streams, scheme, decay, options={}):
    _connection.STREAMS = streams
    model = net()
    ddp = wrap(model)
    optimizer = sgd(model, weight_decay=decay)
    handle = thinwire.attach(ddp, optimizer, scheme=scheme, check_every=3, **options)
    poison = [(step, bad % world) for step, bad in POISON]
    train(ddp, optimizer, rank, range(10), poison)
    assert same_everywhere(weights(model))
    report = handle.report()
    return weights(model), handle.state_dict(), (report.steps, report.skipped,
                                                 report.payload_bytes, report.dense_bytes)


def same_states(a, b):
    assert a.keys() == b.keys() and a["entries"].keys() == b["entries"].keys()
    for name, value in a["entries"].items():
        other = b["entries"][name]
        same = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
        assert same, name
    assert {**a, "entries": 0} == {**b, "entries": 0}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("world, streams", [(1, True), (2, True), (2, "data")])
def test_the_bits_are_the_same(scheme, world, streams):
    usual = run(world, course, False, scheme, 0.01)
    other = run(world, course, streams, scheme, 0.01)
    for (w, state, report), (w2, state2, report2) in zip(usual, other):
        assert torch.equal(w, w2)
        same_states(state, state2)
        assert report == report2 and report[1] == len(POISON)


# A device runs all rounds of a skipped step, so the bytes differ there.
@pytest.mark.parametrize("streams", [True, "data"])
@pytest.mark.parametrize("scheme, options", [("dgc:density=0.05", {"exchange": "split"}),
                                             ("powersgd:rank=1,rate=1", {"fuse_mb": 0.01}),
                                             ("csc:density=0.1", {}), ("terngrad", {})])
def test_rounds_stripes_and_fused_sums(scheme, options, streams):
    usual = run(2, course, False, scheme, 0.01, options)
    other = run(2, course, streams, scheme, 0.01, options)
    for (w, state, report), (w2, state2, report2) in zip(usual, other):
        assert torch.equal(w, w2)
        same_states(state, state2)
        assert report[:2] == report2[:2] and report[1] == len(POISON)


def scaled(rank, world, streams):
    _connection.STREAMS = streams
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc", density=0.05, scaler=scaler)
    for step in range(12):
        optimizer.zero_grad()
        loss = loss_of(ddp, rank, step)
        if step == 6 and rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return weights(model), handle.report().skipped, float(scaler.get_scale())


def test_a_scaler_sees_skipped_steps():
    for (w, skipped, scale), (w2, skipped2, scale2) in zip(run(2, scaled, False),
                                                           run(2, scaled, True)):
        assert torch.equal(w, w2) and skipped == skipped2 == 1 and scale == scale2


def changes(rank, world, streams):
    """Another scheme in mid-run, one that keeps no residual, and back."""
    _connection.STREAMS = streams
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc", density=0.05)
    train(ddp, optimizer, rank, range(4))
    handle.set_scheme("bf16")
    train(ddp, optimizer, rank, range(4, 7), [(4, 1)])  # debts are paid again after a skipped step
    handle.set_scheme("topk", density=0.1)
    train(ddp, optimizer, rank, range(7, 10))
    state = handle.state_dict()
    handle.detach()
    train(ddp, optimizer, rank, range(10, 12))
    return weights(model), state


def test_schemes_change():
    for (w, state), (w2, state2) in zip(run(2, changes, False), run(2, changes, True)):
        assert torch.equal(w, w2)
        same_states(state, state2)


class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(20, 30), torch.nn.Linear(20, 10)
        self.last = torch.nn.Linear(30, 10)

    def forward(self, x, both):
        y = self.last(torch.relu(self.first(x)))
        return y + self.second(x) if both else y


def unused(rank, world, streams):
    _connection.STREAMS = streams
    model = Odd()
    ddp = wrap(model, find_unused_parameters=True)
    optimizer = sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme="topk", density=0.1)
    for step in range(8):
        optimizer.zero_grad()
        torch.manual_seed(10 * step + rank)
        ddp(torch.randn(8, 20), step % 3 == 0).square().mean().backward()
        optimizer.step()
    return weights(model), handle.state_dict()


def test_unused_parameters_lose_nothing():
    for (w, state), (w2, state2) in zip(run(2, unused, False), run(2, unused, True)):
        assert torch.equal(w, w2)
        same_states(state, state2)


def reports(rank, world, streams):
    _connection.STREAMS = streams
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    seen = []
    handle = thinwire.attach(ddp, optimizer, scheme="topk", density=0.05, callback=seen.append)
    train(ddp, optimizer, rank, range(5), [(2, 0)])
    assert handle.step_report.step == 5
    return [(one.step, one.skipped, one.payload_bytes) for one in seen]


def test_callbacks_come_for_every_step():
    usual, other = run(2, reports, False), run(2, reports, True)
    assert usual == other and [one[0] for one in usual[0]] == [1, 2, 3, 4, 5]


def without_optimizer(rank, world, streams):
    _connection.STREAMS = streams
    model = net()
    ddp, optimizer = wrap(model), sgd(model, momentum=0.0, weight_decay=0.1)
    thinwire.attach(ddp, None, scheme="topk", density=0.05)
    train(ddp, optimizer, rank, range(6), [(3, 1)])
    return weights(model)


def test_without_an_optimizer_a_skipped_step_leaves_no_gradients():
    for w, w2 in zip(run(2, without_optimizer, False), run(2, without_optimizer, True)):
        assert torch.equal(w, w2)


def resumed(rank, world, first, second):
    _connection.STREAMS = first
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc", density=0.05)
    train(ddp, optimizer, rank, range(5))
    saved = handle.state_dict(), model.state_dict(), optimizer.state_dict()
    _connection.STREAMS = second
    model = net(seed=1)
    model.load_state_dict(saved[1])
    ddp, optimizer = wrap(model), sgd(model)
    optimizer.load_state_dict(saved[2])
    handle = thinwire.attach(ddp, optimizer, scheme="dgc", density=0.05)
    handle.load_state_dict(saved[0])
    train(ddp, optimizer, rank, range(5, 10))
    return weights(model), handle.state_dict()


def test_a_state_goes_from_one_way_to_the_other():
    usual = run(2, resumed, False, False)
    for ways in ((True, True), (False, True), (True, False)):
        for (w, state), (w2, state2) in zip(usual, run(2, resumed, *ways)):
            assert torch.equal(w, w2)
            same_states(state, state2)


def test_devices_are_checked():
    from thinwire import _model

    for cuda, advice in ((True, "to the CPU or to CUDA"), (False, "to the CPU")):
        with pytest.raises(ValueError, match=advice):
            _model.check_parameters([("a", torch.empty(2, device="meta"))], cuda)
    two = [("a", torch.empty(2)), ("b", torch.empty(2, device="meta"))]
    with pytest.raises(ValueError, match="'b' is on meta, 'a' on cpu; keep the model on one"):
        _model._check_device(two)


def without_the_host(rank, world, streams, kind, scheme, options):
    """Optimizers that leave a step out by a flag on the device, from the first step on."""
    _connection.STREAMS = streams
    model = net()
    ddp = wrap(model)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.05, **options)
    seen = []
    handle = thinwire.attach(ddp, optimizer, scheme=scheme, check_every=0, callback=seen.append)
    for step in range(8):
        optimizer.zero_grad()
        loss = loss_of(ddp, rank, step)
        (loss * float("inf") if (step, rank) in ((0, 0), (3, 1), (6, 0)) else loss).backward()
        known = len(seen)
        optimizer.step()
        # Once it has its state the optimizer does not ask what the step was.
        assert not streams or step < 2 or len(seen) == known
        assert not hasattr(optimizer, "found_inf")
    assert handle.report().skipped == 3 and same_everywhere(weights(model))
    states = [optimizer.state[parameter] for parameter in model.parameters()]
    return weights(model), handle.state_dict(), states


@pytest.mark.parametrize("kind, scheme, options", [
    ("SGD", "dgc:density=0.05", {"momentum": 0.9}),
    ("SGD", "dgc:density=0.05", {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    ("SGD", "topk:density=0.05", {}),
    ("SGD", "topk:density=0.05", {"momentum": 0.9, "weight_decay": 0.01, "fused": True}),
    ("Adam", "bf16", {"fused": True}),
    ("AdamW", "dense", {"fused": True}),
])
def test_the_host_does_not_ask_what_a_step_was(kind, scheme, options):
    usual = run(2, without_the_host, False, kind, scheme, options)
    other = run(2, without_the_host, True, kind, scheme, options)
    for (w, state, moments), (w2, state2, moments2) in zip(usual, other):
        assert torch.equal(w, w2)
        same_states(state, state2)
        for mine, theirs in zip(moments, moments2):
            assert mine.keys() == theirs.keys()
            for key, value in mine.items():
                same = value is theirs[key] or torch.equal(value, theirs[key])
                assert same, key
