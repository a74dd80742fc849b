"""test_delay: delayed averaging from Python: one anchor everywhere, exact resume with messages under way, and what does not fit together."""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import copy
import os
import signal
import subprocess
import time
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import thinwire
from thinwire import _native
from workers import Job, batch, loss_of, net, run, same_everywhere, sgd, train, weights, wrap

FORMS = {"sgd": lambda model: sgd(model, lr=0.0625, weight_decay=0.01, nesterov=True),
         "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)}


def attached(form="sgd", ddp=False, scheme="dense", model=None, **options):
    model = net() if model is None else model
    optimizer = FORMS[form](model)
    outer = wrap(model) if ddp else model
    return outer, optimizer, thinwire.attach(outer, optimizer, scheme=scheme, **options)


def second_moments(optimizer, model):
    return torch.cat([optimizer.state[parameter]["exp_avg_sq"].flatten() for parameter in model.parameters()])


# -- one anchor


def meets(rank, world, form, ddp, options):
    model, optimizer, link = attached(form, ddp, **options)
    train(model, optimizer, rank, range(12))
    own = weights(model)
    assert link.delay == 0 or not same_everywhere(own)
    with link.anchor():
        assert same_everywhere(weights(model)) and not torch.equal(own, weights(model))
    assert torch.equal(own, weights(model))
    train(model, optimizer, rank, [12])
    assert link.report()["in_flight"] == link.in_flight
    link.drain()
    report = link.report()
    assert report["steps"] == 13 and report["messages"] == 13 // options.get("local_steps", 1) + 1 and report["in_flight"] == 0
    assert same_everywhere(weights(model)) and torch.isfinite(weights(model)).all()
    link.check_replicas()
    if form == "adamw":
        assert same_everywhere(second_moments(optimizer, model))
    assert report["ratio"] > 1 or options["scheme"] == "dense"


@pytest.mark.parametrize("world,form,ddp,options", [
    (3, "sgd", False, {"scheme": "dense", "delay": 4}),
    (2, "sgd", True, {"scheme": "dgc", "density": 0.05, "delay": 5, "local_steps": 2}),
    (2, "sgd", False, {"scheme": "powersgd", "delay": 3, "local_steps": 3, "correction": "pull"}),
    (2, "adamw", False, {"scheme": "dense", "delay": 3, "correction": "ledger"}),
    (2, "adamw", True, {"scheme": "bf16", "delay": 0, "local_steps": 4}),
], ids=lambda value: value.get("scheme") if isinstance(value, dict) else None)
def test_all_workers_have_one_anchor(world, form, ddp, options):
    run(world, meets, form, ddp, options)


def fedavg(rank, world, steps_per_message):
    """Without delay and correction, to the bit: x += the mean of what the workers did. Slowly, beside it."""
    model, optimizer, link = attached(delay=0, local_steps=steps_per_message, correction="none")
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
        assert torch.equal(weights(model), weights(slow)), f"after {first + steps_per_message} steps"


def synchronous(rank, world):
    """One step per message and no delay: DDP's training, but for rounding, where there is no momentum to be each worker's own."""
    plain, model = net(), net()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.125) for one in (plain, model)]
    link = thinwire.attach(model, optimizers[1], scheme="dense", delay=0)
    train(wrap(plain), optimizers[0], rank, range(20))
    train(model, optimizers[1], rank, range(20))
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-4, atol=1e-5)
    link.drain()


def test_without_delay_it_is_fedavg_and_synchronous_training():
    run(2, fedavg, 3)
    run(2, fedavg, 1)
    run(3, synchronous)


def wrapped(rank, world):
    """DDP's own exchange is off: the same bits as the plain module, also with accumulation, closures and BatchNorm, whose statistics
    stay each worker's."""
    results = []
    for ddp in (False, True):
        torch.manual_seed(rank)  # rank 0's weights count
        module = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 10))
        model, optimizer, link = attached(ddp=ddp, model=module, delay=3, scheme="topk", density=0.1)
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
        with link.anchor():
            assert same_everywhere(module[1].running_mean) and same_everywhere(weights(module))
        with link.anchor(average_buffers=False):
            assert torch.equal(module[1].running_mean, own)
        assert torch.equal(module[1].running_mean, own)
        copy.deepcopy(module)  # nothing of ours is in it
        link.drain()
        results.append((weights(module), own, {key: link.report()[key] for key in ("steps", "messages", "payload_bytes")}))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1]) and results[0][2] == results[1][2]


def test_a_plain_module_and_ddp_give_the_same_bits():
    run(2, wrapped)


def strange(rank, world):
    """Parameters that lie in memory otherwise, or elsewhere than at first, and one that rank 1 never uses."""
    results = []
    for odd in (False, True):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 4, 3), torch.nn.Linear(3, 3))
        if odd:
            module.to(memory_format=torch.channels_last)
        optimizer = FORMS["adamw"](module)
        link = thinwire.attach(module, optimizer, scheme="dense", delay=2)
        for step in range(8):
            if odd and step == 4:
                module[2].weight.data = module[2].weight.data.clone()
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            x = torch.randn(4, 4, 4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
            optimizer.zero_grad()
            (module if rank == 0 else module[:3])(x).square().sum().backward()
            optimizer.step()
        assert not odd or not module[0].weight.is_contiguous()
        link.drain()
        assert same_everywhere(weights(module)) and (module[3].weight in optimizer.state) == (rank == 0)
        results.append(weights(module))
    torch.testing.assert_close(*results)


def test_parameters_in_odd_places():
    run(2, strange)


def measured(rank, world):
    model, optimizer, link = attached(delay="auto:9")
    train(model, optimizer, rank, range(30))
    assert 1 <= link.delay <= 9 and same_everywhere(torch.tensor([float(link.delay)]))
    link.drain()


def test_a_measured_delay_is_the_same_everywhere():
    run(2, measured)


# -- checkpoints


def resumes(rank, world, form, options):
    model, optimizer, link = attached(form, **options)
    train(model, optimizer, rank, range(9))
    assert link.in_flight > 0
    saved = copy.deepcopy([optimizer.state_dict(), link.state_dict()])
    train(model, optimizer, rank, range(9, 20))
    expected = weights(model)
    with pytest.raises(thinwire.Error, match="before the first step"):
        link.load_state_dict(saved[1])

    other = net(seed=1)
    other_optimizer = FORMS[form](other)
    other_link = thinwire.attach(other, other_optimizer, **options)
    other_optimizer.load_state_dict(saved[0])
    other_link.load_state_dict(saved[1])
    assert other_link.in_flight > 0
    train(other, other_optimizer, rank, range(9, 20))
    assert torch.equal(weights(other), expected)
    assert other_link.step_report["step"] == 20 and other_link.report()["steps"] == 11
    link.drain(), other_link.drain()
    assert torch.equal(weights(other), weights(model))

    for change, part in (({"delay": 3}, "'delay': '3'"), ({"scheme": "topk:density=0.2"}, "density=0.2"),
                         ({"correction": "ledger:book=b"}, "ledger")):
        third = net()
        third_link = thinwire.attach(third, FORMS[form](third), **{**options, **change})
        with pytest.raises(ValueError, match=part):
            third_link.load_state_dict(saved[1])
    with pytest.raises(ValueError, match="5 workers"):
        third_link.load_state_dict({**saved[1], "world": 5})
    synchronous_link = thinwire.attach(wrap(third := net()), sgd(third), scheme="dense")
    with pytest.raises(ValueError, match="delay="):
        synchronous_link.load_state_dict(saved[1])


@pytest.mark.parametrize("form,options", [("sgd", {"scheme": "dgc:density=0.05", "delay": 6, "local_steps": 2}),
                                          ("adamw", {"scheme": "topk:density=0.1", "delay": 4, "correction": "soft:book=b"})], ids=["dgc", "adamw"])
def test_resume_is_exact_with_messages_under_way(form, options):
    run(2, resumes, form, options)


TRAINED = "--model mlp --data digits --workers 2 --steps 40 --lr 0.125 --momentum 0.5 --seed 3 --batch 16 --delay 4 --local-steps 2 --scheme bf16"


def goes_on(rank, world, path, first, last):
    from test_trainer import Mlp, trainer_data
    entries = _native.load_file(f"{path}.rank{rank}")
    data, model = trainer_data.open_data("digits", 0), Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    link = thinwire.attach(model, optimizer, scheme="bf16", delay=4, local_steps=2)
    for name, parameter in model.named_parameters():
        optimizer.state[parameter]["momentum_buffer"] = entries[name + "/velocity"][1].view_as(parameter).clone()
    link.load_state_dict({**link.state_dict(), "entries": {name: value for name, (_, value) in entries.items()},
                          "shares": {name: share for name, (share, _) in entries.items()}})
    for step in range(first, last):
        x, y = data.train_batch(3, step, rank, world, 16)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    own = {name + "/own": parameter.detach().flatten() for name, parameter in model.named_parameters()}
    with link.anchor():
        return {**own, **{name + "/weights": parameter.detach().flatten().clone() for name, parameter in model.named_parameters()}}


def test_the_same_bits_as_the_trainer(tmp_path):
    pytest.importorskip("trainer_data")
    for stop in (7, 18):
        subprocess.run([os.environ["THINWIRE"], "train", *TRAINED.split(), "--stop", str(stop), "--save", str(tmp_path / str(stop))],
                       check=True, capture_output=True)
    for rank, found in enumerate(run(2, goes_on, str(tmp_path / "7"), 7, 18)):
        expected = _native.load_file(f"{tmp_path / '18'}.rank{rank}")
        for name, values in found.items():
            assert torch.equal(values, expected[name][1]), f"rank {rank}, {name}"


# -- steps that do not take place, and ranks that are not there


def poisoned(rank, world):
    model, optimizer, link = attached(delay=3, callback=(reports := []).append)
    train(model, optimizer, rank, range(10), poison={(4, 1)})
    assert [report["skipped"] for report in reports] == [step == 4 and rank == 1 for step in range(10)]
    assert [report["step"] for report in reports] == list(range(1, 11)) and link.report()["skipped"] == rank
    link.drain()
    assert same_everywhere(weights(model)) and torch.isfinite(weights(model)).all()


def scaled(rank, world, given):
    model = net()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    link = thinwire.attach(model, optimizer, scheme="dense", delay=3, scaler=scaler if given else None)
    for step in range(8):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, rank, step) * (float("inf") if (step, rank) == (4, 1) else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
    if not given:
        with pytest.raises(thinwire.Error, match=f"rank {1 - rank} has taken {7 + rank}.*GradScaler"):
            link.drain()
        return
    assert link.report()["steps"] == 8 and link.report()["skipped"] == rank and (scaler.get_scale() < 2**10) == (rank == 1)
    link.drain()
    assert same_everywhere(weights(model))
    link.detach()
    assert scaler.step.__func__ is torch.amp.GradScaler.step


def test_a_void_step_is_one_workers_own():
    run(2, poisoned)
    run(2, scaled, True)
    run(2, scaled, False)


def dies(rank, world, options, victim):
    model, optimizer, link = attached(timeout=20, **options)
    train(model, optimizer, rank, range(6))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    train(model, optimizer, rank, range(6, 40))


def leaves(rank, world, victim):
    """Nobody waits for a message here, only for the last rank to come."""
    model, optimizer, link = attached(timeout=2, delay=0)
    train(model, optimizer, rank, range(3))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    link.drain()


@pytest.mark.parametrize("world,options,victim", [(3, {"scheme": "dgc", "delay": 5}, 1), (2, {"delay": 0, "local_steps": 2}, 0), (3, None, 2)])
def test_a_killed_rank_is_named(world, options, victim):
    begin = time.monotonic()
    outcomes = Job(world, *((dies, options, victim) if options else (leaves, victim))).outcomes(60)
    assert time.monotonic() - begin < 20
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome is not None and not outcome[0], (rank, outcome)
            text = outcome[1].splitlines()[0]
            assert f"rank {victim} {'(silent)' if options else 'did not come'}" in text, f"rank {rank}: {text}"


# -- what does not fit, and the way back


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
    refused("2 parameters", model=model[0], optimizer=torch.optim.SGD(torch.nn.Sequential(model[0], model[2]).parameters(), lr=0.1))
    refused("desnity", scheme="dgc", desnity=0.1)
    refused("float64", model=(double := net().double()), optimizer=sgd(double))
    refused("belong to delay=", delay=None, local_steps=5)
    refused("belong to delay=", delay=None, correction="soft")
    adam = torch.optim.Adam(model.parameters())
    refused("second moments", "soft:book=b", optimizer=adam, scheme="dgc")
    refused("second moments", "dense or bf16", optimizer=adam, scheme="int8", correction="ledger:book=b")
    ddp = wrap(model)
    refused("process_group=", model=ddp, process_group=mock.sentinel.group)

    link = thinwire.attach(ddp, optimizer, scheme="dgc", delay=5)
    assert link.scheme == "dgc:momentum=0"
    refused("link already", model=ddp)
    with link.anchor():
        for forbidden in (link.state_dict, link.drain, lambda: train(ddp, optimizer, rank, [0])):
            with pytest.raises(thinwire.Error, match="leave `with"):
                forbidden()
    before = weights(model)
    ddp.require_backward_grad_sync = True
    with pytest.raises(RuntimeError, match="turned it on again"):
        train(ddp, optimizer, rank, [0])
    assert torch.equal(before, weights(model)) and link.report()["steps"] == 0
    ddp.require_backward_grad_sync = False
    train(ddp, optimizer, rank, range(8))  # one worker meets nobody
    link.detach()
    with pytest.raises(thinwire.Error, match="detach"):
        link.state_dict()


def test_wrong_combinations_are_refused():
    run(1, refusals)


def detaches(rank, world, form, options):
    """From there on plain DDP keeps replicas identical: momentum is the same everywhere too."""
    model, optimizer, link = attached(form, ddp=True, **options)
    train(model, optimizer, rank, range(10))
    link.detach()
    link.detach()
    assert same_everywhere(weights(model))
    train(model, optimizer, rank, range(10, 14))
    assert same_everywhere(weights(model)) and link.report()["steps"] == 10
    thinwire.attach(model, optimizer, scheme="dense", delay=2).detach()  # and again, or
    thinwire.attach(model, optimizer, scheme="bf16")  # ... gradients


def test_detach_gives_back_plain_ddp():
    run(2, detaches, "sgd", {"scheme": "topk", "density": 0.1, "delay": 3, "correction": "ledger:book=b"})
    run(3, detaches, "adamw", {"scheme": "dense", "delay": 2})


def learns(rank, world, scheme):
    """And it trains: the same task for all, messages of 1 in 20 values, eight steps late."""
    model, optimizer, link = attached(scheme=scheme, delay=8, local_steps=2)
    x, y = batch(0, 0, 64)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    link.drain()
    return float(torch.nn.functional.cross_entropy(model(x), y).detach())


def test_it_learns():
    assert max(run(2, learns, "dgc:density=0.05")) < 0.5
