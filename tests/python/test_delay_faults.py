"""test_delay_faults: delayed averaging with skipped steps, missing ranks, or settings
that clash."""

# SPDX-License-Identifier: Apache-2.0
import os
import signal
import time
from unittest import mock

import pytest
import torch
import thinwire
from test_delay import attached
from workers import Job, loss_of, net, run, same_everywhere, sgd, train, weights, wrap


def poisoned(rank, world):
    model, optimizer, handle = attached(delay=3, callback=(reports := []).append)
    train(model, optimizer, rank, range(10), poison={(4, 1)})
    assert [report.skipped for report in reports] == [step == 4 and rank == 1 for step in range(10)]
    assert [report.step for report in reports] == list(
        range(1, 11)
    ) and handle.report().skipped == rank
    handle.drain()
    assert same_everywhere(weights(model)) and torch.isfinite(weights(model)).all()


def scaled(rank, world, given):
    model = net()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    handle = thinwire.attach(
        model, optimizer, scheme="dense", delay=3, scaler=scaler if given else None
    )
    for step in range(8):
        optimizer.zero_grad()
        scaler.scale(
            loss_of(model, rank, step) * (float("inf") if (step, rank) == (4, 1) else 1)
        ).backward()
        scaler.step(optimizer)
        scaler.update()
    if not given:
        with pytest.raises(
            thinwire.Error, match=f"rank {1 - rank} has taken {7 + rank}.*GradScaler"
        ):
            handle.drain()
        return
    assert (
        handle.report().steps == 8
        and handle.report().skipped == rank
        and (scaler.get_scale() < 2**10) == (rank == 1)
    )
    handle.drain()
    assert same_everywhere(weights(model))
    handle.detach()
    assert scaler.step.__func__ is torch.amp.GradScaler.step


def test_a_void_step_is_one_workers_own():
    run(2, poisoned)
    run(2, scaled, True)
    run(2, scaled, False)


def dies(rank, world, options, victim):
    model, optimizer, handle = attached(timeout=20, **options)
    train(model, optimizer, rank, range(6))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    train(model, optimizer, rank, range(6, 40))


def leaves(rank, world, victim):
    """No rank waits for a message here, only for the last rank to arrive."""
    model, optimizer, handle = attached(timeout=2, delay=0)
    train(model, optimizer, rank, range(3))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    handle.drain()


@pytest.mark.parametrize(
    "world,options,victim",
    [(3, {"scheme": "dgc", "delay": 5}, 1), (2, {"delay": 0, "local_steps": 2}, 0), (3, None, 2)],
)
def test_a_killed_rank_is_named(world, options, victim):
    begin = time.monotonic()
    outcomes = Job(world, *((dies, options, victim) if options else (leaves, victim))).outcomes(60)
    assert time.monotonic() - begin < 20
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome is not None and not outcome[0], (rank, outcome)
            text = outcome[1].splitlines()[0]
            assert f"rank {victim} {'(silent)' if options else 'did not come'}" in text, (
                f"rank {rank}: {text}"
            )


def refusals(rank, world):
    model = net()
    optimizer = sgd(model)

    def refused(*parts, model=model, optimizer=optimizer, scheme="dense", **options):
        with pytest.raises(Exception) as caught:
            thinwire.attach(model, optimizer, scheme=scheme, **{"delay": 5, **options})
        assert all(part in str(caught.value) for part in parts), caught.value

    refused("signum", "vote", scheme="signum")
    refused("powersgd", "local steps", scheme="powersgd")
    refused("momentum=0.9", "leave it out", scheme="dgc", momentum=0.9)
    refused("published", "thinwire train", correction="published")
    refused("soft, ledger", "loud", correction="loud")
    refused("rate=", correction="ledger:rate=0.5")
    refused("auto:MOST", delay="auto:0")
    refused("auto:MOST", delay=-1)
    refused("local_steps=0", local_steps=0)
    refused("local_steps=-2", local_steps=-2)
    refused("book=b", scheme="bf16", correction="ledger:book=b")
    refused("exchange=", "delay=", exchange="split")
    refused("fuse_mb=", "delay=", fuse_mb=1)
    refused("optimizer", optimizer=None)
    refused("SGD, Adam or AdamW", "RMSprop", optimizer=torch.optim.RMSprop(model.parameters()))
    refused("amsgrad", optimizer=torch.optim.Adam(model.parameters(), amsgrad=True))
    refused(
        "a parameter of shape (32, 32) that the model does not have",
        model=model[0],
        optimizer=torch.optim.SGD(torch.nn.Sequential(model[0], model[2]).parameters(), lr=0.1),
    )
    refused("desnity", scheme="dgc", desnity=0.1)
    refused("float64", model=(double := net().double()), optimizer=sgd(double))
    refused("belong to delay=", delay=None, local_steps=5)
    refused("belong to delay=", delay=None, correction="soft")
    adam = torch.optim.Adam(model.parameters())
    refused("second moments", "soft:book=b", optimizer=adam, scheme="dgc")
    refused(
        "second moments", "dense or bf16", optimizer=adam, scheme="int8", correction="ledger:book=b"
    )
    ddp = wrap(model)
    refused("process_group=", model=ddp, process_group=mock.sentinel.group)

    handle = thinwire.attach(ddp, optimizer, scheme="dgc", delay=5)
    assert handle.scheme == "dgc:momentum=0"
    refused("attached already", model=ddp)
    with handle.anchor():
        for forbidden in (
            handle.state_dict,
            handle.drain,
            lambda: train(ddp, optimizer, rank, [0]),
        ):
            with pytest.raises(thinwire.Error, match="leave `with"):
                forbidden()
    before = weights(model)
    ddp.require_backward_grad_sync = True
    with pytest.raises(RuntimeError, match="turned it on again"):
        train(ddp, optimizer, rank, [0])
    assert torch.equal(before, weights(model)) and handle.report().steps == 0
    ddp.require_backward_grad_sync = False
    train(ddp, optimizer, rank, range(8))  # one worker meets nobody
    handle.detach()
    with pytest.raises(thinwire.Error, match="detach"):
        handle.state_dict()


def test_wrong_combinations_are_refused():
    run(1, refusals)
