"""test_attach: what attach() decides, what it rejects, and that it can be undone."""

# SPDX-License-Identifier: Apache-2.0
import logging
import os
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import thinwire
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel.distributed import _MixedPrecision
from workers import loss_of, net, run, same_everywhere, sgd, train, weights, wrap


def refusals(rank, world):
    model = net()
    ddp, optimizer = wrap(model), sgd(model)

    def refused(*parts, scheme="dgc", optimizer=optimizer, model=ddp, kind=Exception, **options):
        with pytest.raises(kind) as caught:
            thinwire.attach(model, optimizer, scheme=scheme, **options)
        assert all(part in str(caught.value) for part in parts), caught.value

    adam = torch.optim.Adam(model.parameters())
    refused("torch.optim.SGD", "Adam", optimizer=adam, kind=ValueError)
    refused("signum", "Adam", optimizer=adam, scheme="signum")
    refused("momentum", "Adam", optimizer=adam, scheme="int8:memory=momentum")
    refused("accumulates momentum", optimizer=None)
    refused("dampening", optimizer=sgd(model, dampening=0.1))
    two = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "momentum": 0.5}],
        lr=0.1,
        momentum=0.9,
    )
    refused("'4.weight'", "none of the optimizers", optimizer=two)
    every = [
        {"params": model[0].parameters()},
        {"params": [*model[2].parameters(), *model[4].parameters()], "momentum": 0.5},
    ]
    refused("one momentum", optimizer=torch.optim.SGD(every, lr=0.1, momentum=0.9, nesterov=True))
    refused("one momentum", optimizer=torch.optim.SGD(every, lr=0.1, momentum=0.9), scheme="signum")
    refused("one momentum", optimizer=torch.optim.SGD(every, lr=0.1, momentum=0.9), nesterov=True)
    refused("Nesterov", "signum", optimizer=sgd(model, nesterov=True), scheme="signum")
    refused("say it once", momentum=0.5)
    refused("DistributedDataParallel", "Sequential", model=model, kind=TypeError)
    refused("unknown scheme", "known:", scheme="gdc")
    refused("desnity", scheme="dgc", desnity=0.1)
    refused("density", density=3)
    refused("server", exchange="server:1")
    refused("timeout=0", timeout=0)
    refused("split", scheme="dense", exchange="split")
    double = torch.nn.Linear(2, 2).double()
    refused("'weight'", "float64", model=wrap(double), optimizer=sgd(double))
    half = torch.nn.Linear(2, 2).bfloat16()
    refused("bfloat16", "autocast", model=half, optimizer=sgd(half), delay=1)
    with mock.patch.dict(os.environ, THINWIRE_LOG="loud"):
        refused("THINWIRE_LOG=loud")
    assert optimizer.param_groups[0]["momentum"] == 0.9, "a refusal has changed the optimizer"

    hooked = wrap(net())
    hooked.register_comm_hook(None, default_hooks.allreduce_hook)
    refused("communication hook", "anew", model=hooked, optimizer=sgd(hooked))
    mixed = wrap(net(), mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16))
    refused("mixed_precision=", "autocast", model=mixed, optimizer=sgd(mixed))
    thinwire.attach(ddp, optimizer, scheme="dgc")
    refused("attached already")


def test_wrong_combinations_are_refused():
    run(1, refusals)


def decisions(rank, world):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("thinwire").addHandler(handler)
    model = net()
    ddp, optimizer = wrap(model), sgd(model, nesterov=True)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc", density=0.05)
    assert optimizer.param_groups[0]["momentum"] == 0.9 and optimizer.param_groups[0]["nesterov"], (
        "it stays visible"
    )
    assert handle.scheme == "dgc:density=0.05,momentum=0.9,nesterov=on"
    train(ddp, optimizer, rank, range(3))
    assert handle.report().ratio > 5 and handle.step_report.step == 3
    return lines


def test_one_line_says_what_was_decided():
    first, second = run(2, decisions)
    assert len(first) == 1 and second == []
    for part in (
        "dgc:density=0.05,momentum=0.9,nesterov=on",
        "2 workers",
        "2058 parameters",
        "taken over from SGD",
        "60 s",
    ):
        assert part in first[0], first


def takes_over(rank, world):
    """At density 1, without masking, dgc is SGD with momentum; gradients differ only
    by rounding."""
    for options in (
        {},
        {"nesterov": True},
        {"weight_decay": 0.05},
        {"weight_decay": 0.05, "nesterov": True},
        {"weight_decay": 0.05, "maximize": True, "lr": 0.001},
    ):
        result = []
        for attached in (False, True):
            model = net()
            ddp, optimizer = wrap(model), sgd(model, **options)
            train(ddp, optimizer, rank, range(0))
            if attached:
                thinwire.attach(ddp, optimizer, scheme="dgc:density=1,mask=off,values=f32")
            train(ddp, optimizer, rank, range(30))
            result.append(weights(model))
        torch.testing.assert_close(
            result[0], result[1], rtol=1e-4, atol=1e-5, msg=lambda text: f"{options}: {text}"
        )
    # During the run: the optimizer's momentum moves to the scheme and back.
    result = []
    for attached in (False, True):
        model = net()
        ddp, optimizer = wrap(model), sgd(model)
        handle = thinwire.attach(ddp, optimizer, scheme="dense")
        train(ddp, optimizer, rank, range(10))
        if attached:
            handle.set_scheme("dgc:density=1,mask=off,values=f32")
        train(ddp, optimizer, rank, range(10, 20))
        if attached:
            assert not optimizer.state[model[0].weight]
            handle.detach()
            assert "momentum_buffer" in optimizer.state[model[0].weight]
        train(ddp, optimizer, rank, range(20, 30))
        result.append(weights(model))
    torch.testing.assert_close(result[0], result[1], rtol=1e-4, atol=1e-5)


def test_momentum_and_decay_are_taken_over_as_they_were():
    run(2, takes_over)


def detaches(rank, world):
    """After detach() results are bit-identical to plain DDP, once the residual has
    been delivered."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model, momentum=0)
    handle = thinwire.attach(ddp, optimizer, scheme="topk", density=0.01)
    train(ddp, optimizer, rank, range(5))
    owed = {
        name: entry for name, entry in handle.state_dict()["entries"].items() if name.endswith("/v")
    }
    plain = net()
    plain.load_state_dict(model.state_dict())
    plain_ddp, plain_optimizer = wrap(plain), sgd(plain, momentum=0)
    handle.detach()
    handle.detach()
    for call in (
        lambda: handle.set_scheme("topk"),
        lambda: handle.schedule({9: "topk"}),
        lambda: handle.load_state_dict(handle.state_dict()),
    ):
        with pytest.raises(RuntimeError, match="is detached; wrap it in DDP"):
            call()
    for ddp_, optimizer_ in ((plain_ddp, plain_optimizer), (ddp, optimizer)):
        optimizer_.zero_grad()
        loss_of(ddp_, rank, 5).backward()
    for (name, parameter), other in zip(model.named_parameters(), plain.parameters()):
        mean = owed[name + "/v"] / world
        dist.all_reduce(mean)
        torch.testing.assert_close(
            parameter.grad.flatten(), other.grad.flatten() + mean, rtol=1e-5, atol=1e-6
        )
    with pytest.raises(RuntimeError, match="detached"):
        handle.set_scheme("dgc")
    plain.load_state_dict(model.state_dict())
    train(ddp, optimizer, rank, range(6, 9))
    train(plain_ddp, plain_optimizer, rank, range(6, 9))
    assert torch.equal(weights(model), weights(plain))


def test_detach_gives_back_plain_ddp():
    run(2, detaches)


def closures(rank, world):
    """A step that runs backward itself, as in Lightning, with the closure positional or by name."""
    results = []
    for form in (None, "positional", "named"):
        model = net()
        ddp, optimizer = wrap(model), sgd(model, weight_decay=0.05)
        handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.1")
        for step in range(6):

            def closure():
                optimizer.zero_grad()
                loss = loss_of(ddp, rank, step) * (float("nan") if (step, rank) == (3, 1) else 1)
                loss.backward()
                return loss

            if form is None:
                closure()
                optimizer.step()
            else:
                assert (
                    optimizer.step(closure)
                    if form == "positional"
                    else optimizer.step(closure=closure)
                ) is not None
        assert handle.report().skipped == 1
        results.append(weights(model))
    assert (
        torch.isfinite(results[0]).all()
        and torch.equal(results[0], results[1])
        and torch.equal(results[0], results[2])
    )


def test_closures():
    run(2, closures)


def misuse(rank, world):
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc")
    # An optimizer state that is loaded before attach() still says how much momentum there was.
    saved = optimizer.state_dict()
    second = net()
    other = sgd(second)
    other.load_state_dict(saved)
    assert thinwire.attach(wrap(second), other, scheme="dgc").scheme == handle.scheme
    # Replicas that differ are found and named.
    with torch.no_grad():
        model[2].bias[3] += rank
    with pytest.raises(thinwire.Error, match="2.bias"):
        handle.check_replicas()


def test_mistakes_are_found():
    run(2, misuse)
