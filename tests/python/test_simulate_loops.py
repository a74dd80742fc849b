"""test_simulate_loops: training loops of every kind give the same bits in virtual workers as in
processes with DDP and attach(). Each loop is written once and runs in both."""

# SPDX-License-Identifier: Apache-2.0
import contextlib
import functools

import pytest
import torch
import thinwire
from test_ddp_edges import Branches
from test_momentum import conv_loss, conv_net
from test_simulate import CAP, one_thread  # noqa: F401  (a fixture)
from workers import loss_of, net, run, sgd, wrap

WORLD = 2


class Real:
    """This rank, of a DDP job."""

    def __init__(self, rank, model, optimizer, scheme, ddp=None, **options):
        self.ranks, self.net = [rank], wrap(model, **(ddp or {}))
        self.handle = thinwire.attach(self.net, optimizer, scheme=scheme, **options)

    def share(self, rank, last=True):
        return contextlib.nullcontext() if last else self.net.no_sync()

    def exchange(self):
        """Was made by backward."""


class Virtual:
    """All ranks."""

    def __init__(self, model, optimizer, scheme, ddp=None, **options):
        self.ranks, self.net = range(WORLD), model
        self.handle = thinwire.simulate(
            model, optimizer, WORLD, scheme, bucket_cap_mb=CAP, **(ddp or {}), **options
        )

    def share(self, rank, last=True):
        return self.handle.worker(rank)

    def exchange(self):
        self.handle.exchange()


def backward(job, step, loss=loss_of, last=True):
    for rank in job.ranks:
        with job.share(rank, last):
            loss(job.net, rank, step).backward()


def accumulates(job):
    for scheme in ("dgc:density=0.05", "topk:density=0.05", "dense"):
        model = net()
        optimizer = sgd(model, weight_decay=1e-3)
        here = job(model, optimizer, scheme)
        for step in range(5):
            optimizer.zero_grad()
            for part in range(3):
                backward(here, 3 * step + part, last=part == 2)
            optimizer.step()
        yield model


def leaves_parameters_out(job):
    """Turns by rank: the same everywhere, so that no rank uses the other branch, or not."""
    for turns in (([0, 1], [0, 1]), ([0, 1, 0, 0], [0, 1, 1, 1])):
        for scheme in ("dense", "topk:density=0.05", "powersgd", "dgc:density=0.05", "int8"):
            model = Branches()
            optimizer = sgd(model, lr=0.01)
            here = job(model, optimizer, scheme, ddp={"find_unused_parameters": True})
            for step in range(8):
                optimizer.zero_grad()
                for rank in here.ranks:
                    with here.share(rank):
                        model.turn = turns[rank][step % len(turns[rank])]
                        loss_of(here.net, rank, step).backward()
                optimizer.step()
            yield model


def clips(job):
    model = net()
    optimizer = sgd(model)
    here = job(model, optimizer, "topk:density=0.05")
    for step in range(5):
        optimizer.zero_grad()
        backward(here, step)
        here.exchange()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    yield model


def scales_losses(job):
    for scheme in ("topk:density=0.05", "dgc:density=0.05", "int8"):
        model = net()
        optimizer = sgd(model, fused=scheme == "int8")
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        here = job(model, optimizer, scheme, scaler=scaler)
        for step in range(9):
            optimizer.zero_grad()
            for rank in here.ranks:
                with here.share(rank):
                    loss = loss_of(here.net, rank, step)
                    poison = float("inf") if (step, rank) == (5, 1) else 1.0
                    (scaler.scale(loss) * poison).backward()
            scaler.step(optimizer)
            scaler.update()
        assert here.handle.report().skipped == 1
        yield model, scaler.get_scale()


def has_batch_norm(job):
    torch.manual_seed(3)
    model = torch.nn.Sequential(net(), torch.nn.BatchNorm1d(10), torch.nn.Linear(10, 10))
    optimizer = sgd(model)
    here = job(model, optimizer, "onebit")
    for step in range(5):
        optimizer.zero_grad()
        backward(here, step)
        optimizer.step()
    yield model


def has_spectral_norm(job):
    """Its forward reads and writes buffers: each worker begins a step with worker 0's of the last
    one, and goes on with its own in the step."""
    for order in ((0, 1), (1, 0)):
        for parts in (1, 3):
            torch.manual_seed(3)
            norm = torch.nn.utils.parametrizations.spectral_norm
            model = torch.nn.Sequential(net(), torch.nn.ReLU(), norm(torch.nn.Linear(10, 10)))
            for buffer in model[2].buffers():  # far from settled: each forward changes the weight
                buffer.copy_(torch.nn.functional.normalize(torch.randn(10), dim=0))
            optimizer = sgd(model)
            here = job(model, optimizer, "topk:density=0.3")
            for step in range(4):
                optimizer.zero_grad()
                for part in range(parts):
                    for rank in [rank for rank in order if rank in here.ranks]:
                        with here.share(rank, part == parts - 1):
                            loss_of(here.net, rank, parts * step + part).backward()
                optimizer.step()
            yield model


def has_other_formats(job):
    for channels_last, dtype in ((True, torch.float32), (False, torch.bfloat16)):
        model = conv_net(channels_last)
        model[4].to(dtype)
        optimizer = sgd(model, lr=0.02)
        here = job(model, optimizer, "dgc:density=0.1")
        for step in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float32):
                losses = functools.partial(backward, here, step, conv_loss)
                losses()
            optimizer.step()
        yield model


def changes_momentum(job):
    model = net()
    parameters = list(model.parameters())
    groups = [{"params": parameters[:2], "momentum": 0.8}, {"params": parameters[2:]}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-3)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    here = job(model, optimizer, "dgc:density=0.05,mask=off")
    for step in range(6):
        optimizer.zero_grad()
        backward(here, step)
        optimizer.step()
        rates.step()
    yield model


def has_two_optimizers(job):
    for scheme in ("csc", "onebit"):
        model = net()
        parameters = list(model.parameters())
        both = [torch.optim.SGD(part, lr=0.05, momentum=0.9)
                for part in (parameters[:3], parameters[3:])]
        here = job(model, both, scheme)
        for step in range(5):
            model.zero_grad()
            backward(here, step)
            for optimizer in both:
                optimizer.step()
        yield model


def keeps_zeros(job):
    for scheme in ("dgc:density=0.05", "topk:density=0.05"):
        model = net()
        optimizer = sgd(model)
        here = job(model, optimizer, scheme)
        for step in range(5):
            optimizer.zero_grad(set_to_none=False)
            backward(here, step)
            optimizer.step()
        yield model


def adds_to_averages(job):
    model = net()
    optimizer = sgd(model, lr=0.01)
    here = job(model, optimizer, "topk:density=0.05")
    for step in range(6):
        if step % 3 == 0:
            optimizer.zero_grad()
        backward(here, step)
        optimizer.step()
    yield model


def has_closures(job):
    model = net()
    optimizer = sgd(model, weight_decay=1e-3)
    here = job(model, optimizer, "dgc:density=0.05")
    for step in range(5):

        def closure():
            optimizer.zero_grad()
            backward(here, step)

        optimizer.step(closure)
    yield model


def changes_schemes(job):
    model = net()
    optimizer = sgd(model)
    here = job(model, optimizer, "dgc:density=0.05")
    here.handle.schedule({2: "topk:density=0.05", 4: "csc", 6: {"density": 0.1}, 8: "signum"})
    for step in range(10):
        optimizer.zero_grad()
        backward(here, step)
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.001 if step > 6 else 0.05
    assert here.handle.scheme.startswith("signum")
    yield model


def adam(job):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    here = job(model, optimizer, "int8")
    for step in range(6):
        optimizer.zero_grad()
        for rank in here.ranks:
            with here.share(rank):
                loss = loss_of(here.net, rank, step)
                (loss * float("nan") if (step, rank) == (3, 1) else loss).backward()
        optimizer.step()
    yield model


LOOPS = [accumulates, leaves_parameters_out, clips, scales_losses, has_batch_norm,
         has_spectral_norm, has_other_formats, changes_momentum, has_two_optimizers, keeps_zeros,
         adds_to_averages, has_closures, changes_schemes, adam]


def results(job):
    def of(result):
        model, *others = result if isinstance(result, tuple) else (result,)
        return [tensor.clone() for tensor in model.state_dict().values()], others

    return {loop.__name__: [of(result) for result in loop(job)] for loop in LOOPS}


def all_loops(rank, world):
    return results(functools.partial(Real, rank))


@functools.lru_cache(maxsize=1)
def wanted():
    return run(WORLD, all_loops)[0]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_every_loop(loop):
    expected = wanted()[loop.__name__]
    got = list(loop(Virtual))
    assert len(got) == len(expected) > 0
    for i, (result, (tensors, others)) in enumerate(zip(got, expected)):
        model, *rest = result if isinstance(result, tuple) else (result,)
        assert rest == others
        for (name, value), tensor in zip(model.state_dict().items(), tensors):
            assert torch.equal(value, tensor), f"part {i}: {name}"
