"""test_delay_streams: delayed averaging as on CUDA, of parameters on the CPU: the bits, states and
skipped steps of the usual way. Each test is one job, in which workers go both ways."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import thinwire
from thinwire import _connection
from workers import loss_of, net, run, same_everywhere, sgd, train, weights, wrap

DGC = {"scheme": "dgc", "density": 0.05, "momentum": 0.0}


def made(kind, model, options):
    common = {"lr": 0.0625, "momentum": 0.9} if kind == "SGD" else {"lr": 0.01}
    return getattr(torch.optim, kind)(model.parameters(), **common, **options)


def same(a, b):
    assert a.keys() == b.keys()
    for name, value in a.items():
        other = b[name]
        equal = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
        assert equal, name


def course(rank, world, streams, kind, settings, options, ddp=False):
    _connection.STREAMS = streams
    model = net()
    optimizer = made(kind, model, options)
    outer = wrap(model) if ddp else model
    handle = thinwire.attach(outer, optimizer, check_every=3, **settings)
    train(outer, optimizer, rank, range(9), [(4, world - 1), (7, 0)])
    own = weights(model)
    with handle.anchor():
        shown = weights(model)
        assert same_everywhere(shown)
    assert torch.equal(own, weights(model))
    state = handle.state_dict()["entries"]
    train(outer, optimizer, rank, [9, 10])
    handle.check_replicas()
    handle.drain()
    drained = weights(model)
    assert same_everywhere(drained)
    report = handle.report()
    train(outer, optimizer, rank, [11])
    handle.detach()
    return (own, shown, drained, weights(model)), state, (
        report.steps, report.skipped, report.messages, report.payload_bytes, report.in_flight)


def compared(rank, world, streams, *settings):
    usual = course(rank, world, False, *settings)
    other = course(rank, world, streams, *settings)
    assert all(torch.equal(a, b) for a, b in zip(usual[0], other[0])), settings
    same(usual[1], other[1])
    assert usual[2] == other[2], settings


def all_courses(rank, world):
    for kind, settings, options in (
        ("SGD", {"scheme": "dense", "delay": 4}, {}),
        ("SGD", {**DGC, "delay": 5, "local_steps": 2}, {"fused": True, "nesterov": True}),
        ("SGD", {"scheme": "powersgd", "delay": 3, "local_steps": 3, "correction": "pull"}, {}),
        ("AdamW", {"scheme": "dense", "delay": 3}, {"fused": True}),
        ("Adam", {"scheme": "bf16", "delay": 0, "local_steps": 4}, {}),
    ):
        compared(rank, world, True, kind, settings, options)
    compared(rank, world, "data", "SGD", {**DGC, "delay": 4}, {})
    compared(rank, world, True, "SGD", {**DGC, "delay": 4}, {"fused": True}, True)


def alone(rank, world):
    compared(rank, world, True, "SGD", {**DGC, "delay": 4}, {"fused": True})
    model = net()
    model.register_parameter("nothing", torch.nn.Parameter(torch.empty(0)))
    handle = thinwire.attach(model, sgd(model), scheme="dense", delay=2)
    handle.drain()
    handle.detach()
    with pytest.raises(thinwire.Error, match="auto:9 measures when messages arrive"):
        thinwire.attach(model, sgd(model), scheme="dense", delay="auto:9")


def test_the_bits_are_the_same():
    run(2, all_courses)
    run(1, alone)


def resumed(rank, world, first, second):
    kind, settings, options = "AdamW", {"scheme": "dense", "delay": 4}, {}
    _connection.STREAMS = first
    model = net()
    optimizer = made(kind, model, options)
    handle = thinwire.attach(model, optimizer, **settings)
    train(model, optimizer, rank, range(6))
    saved = handle.state_dict(), model.state_dict(), optimizer.state_dict()
    _connection.STREAMS = second
    model = net(seed=1)
    model.load_state_dict(saved[1])
    optimizer = made(kind, model, options)
    optimizer.load_state_dict(saved[2])
    handle = thinwire.attach(model, optimizer, **settings)
    handle.load_state_dict(saved[0])
    train(model, optimizer, rank, range(6, 13))
    return weights(model), handle.state_dict()["entries"]


def odd(rank, world, streams):
    """channels_last, storage that moves, and a parameter that rank 1 begins to use late."""
    _connection.STREAMS = streams
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.Flatten(),
                                torch.nn.Linear(32, 3), torch.nn.Linear(3, 3))
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    handle = thinwire.attach(model, optimizer, scheme="dense", delay=2)
    for step in range(9):
        if step == 4:
            model[2].weight.data = model[2].weight.data.clone()
        x = torch.randn(4, 4, 4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        (model if rank == 0 or step > 5 else model[:3])(x).square().sum().backward()
        optimizer.step()
    assert not model[0].weight.is_contiguous()
    handle.drain()
    return weights(model), {str(i): optimizer.state[one]["exp_avg_sq"]
                            for i, one in enumerate(model.parameters())}


def both(rank, world):
    usual = resumed(rank, world, False, False)
    for ways in ((True, True), (False, True), (True, False)):
        other = resumed(rank, world, *ways)
        assert torch.equal(usual[0], other[0])
        same(usual[1], other[1])
    usual, other = odd(rank, world, False), odd(rank, world, True)
    assert torch.equal(usual[0], other[0])
    same(usual[1], other[1])


def test_states_move_and_parameters_lie_in_odd_places():
    run(2, both)


def asks(rank, options):
    """A fused optimizer leaves a step out by a flag; the host does not read it."""
    _connection.STREAMS = True
    model = net()
    optimizer = made("SGD", model, options)
    seen, looked = [], []
    handle = thinwire.attach(model, optimizer, scheme="dense", delay=3, callback=seen.append)
    takes_flag = handle._optimizer.takes_flag

    def watched():
        looked.append(takes_flag())
        return looked[-1]

    handle._optimizer.takes_flag = watched
    train(model, optimizer, rank, range(6), [(4, 0)])
    assert looked == [False] + [bool(options)] * 5  # in the first step it has no state yet
    assert [one.skipped for one in seen] == [False] * 4 + [rank == 0, False]
    assert handle.report().skipped == (1 if rank == 0 else 0)
    assert torch.isfinite(weights(model)).all()


def scaled(rank, streams, options):
    _connection.STREAMS = streams
    model = net()
    optimizer = sgd(model, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    handle = thinwire.attach(model, optimizer, scheme="dense", delay=3, scaler=scaler)
    for step in range(9):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        scaler.scale(loss * float("inf") if (step, rank) == (5, 1) else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    handle.drain()
    return weights(model), handle.report().skipped, float(scaler.get_scale())


def skips(rank, world):
    for options in ({"fused": True}, {}):
        asks(rank, options)
        usual, other = scaled(rank, False, options), scaled(rank, True, options)
        assert torch.equal(usual[0], other[0]) and usual[1:] == other[1:]
        assert usual[1] == rank


def test_skipped_steps():
    run(2, skips)
