"""test_with: a handle together with everything else that DDP offers. Most checks say: with
`dense`, results are bit-identical to plain DDP; with a compressing scheme, replicas stay
identical and the training continues."""

# SPDX-License-Identifier: Apache-2.0
import contextlib

import pytest
import torch
import torch.distributed as dist
import thinwire
from torch.distributed.algorithms.join import Join
from workers import batch, loss_of, net, run, same_everywhere, sgd, train, weights, wrap

SCHEMES = ("dense", "dgc:density=0.05", "powersgd")


def compare(rank, body, schemes=SCHEMES, **ddp_options):
    """body(ddp, optimizer, model) without a handle, then with one per scheme."""
    plain = None
    for scheme in (None, *schemes):
        model = ddp_options.get("model", net)()
        ddp = wrap(model, **{key: value for key, value in ddp_options.items() if key != "model"})
        optimizer = sgd(model)
        handle = thinwire.attach(ddp, optimizer, scheme=scheme, check_every=3) if scheme else None
        body(ddp, optimizer, model)
        result = weights(model)
        if scheme is None:
            plain = result
        assert scheme != "dense" or torch.equal(plain, result), "not the bits of plain DDP"
        assert torch.isfinite(result).all() and same_everywhere(result), scheme
        if handle is not None:
            assert handle.report().steps > 0
    return handle


def accumulation(rank, world):
    def body(ddp, optimizer, model):
        for step in range(8):
            optimizer.zero_grad()
            for part in range(3):
                with ddp.no_sync() if part < 2 else contextlib.nullcontext():
                    (loss_of(ddp, rank, 3 * step + part) / 3).backward()
            optimizer.step()

    handle = compare(rank, body)
    assert handle.report().steps == 8


class Branches(torch.nn.Module):
    """Uses one of two branches, by step; ranks may differ."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.common, self.left, self.right = (
            torch.nn.Linear(20, 16),
            torch.nn.Linear(16, 10),
            torch.nn.Linear(16, 10),
        )
        self.never = torch.nn.Linear(3, 3)
        self.turn = 0

    def forward(self, x):
        return (self.left if self.turn % 2 == 0 else self.right)(torch.relu(self.common(x)))


def unused(rank, world):
    def body(ddp, optimizer, model):
        for step in range(9):
            model.turn = step + (rank if step > 4 else 0)
            train(ddp, optimizer, rank, [step])

    compare(rank, body, model=Branches, find_unused_parameters=True)


def static_graph(rank, world):
    compare(
        rank, lambda ddp, optimizer, model: train(ddp, optimizer, rank, range(8)), static_graph=True
    )


def bucket_views(rank, world):
    compare(
        rank,
        lambda ddp, optimizer, model: train(ddp, optimizer, rank, range(8)),
        gradient_as_bucket_view=True,
    )


def autocast(rank, world):
    def body(ddp, optimizer, model):
        for step in range(8):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(ddp, rank, step)
            loss.backward()
            optimizer.step()

    compare(rank, body)


def several(rank, world):
    """Two models on subgroups of two, a third on all four, one backward through two of them."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    first, second, third = net(seed=1), net(seed=2), net(seed=3)
    half = halves[rank // 2]
    ddps = [wrap(first, process_group=half), wrap(second, process_group=half), wrap(third)]
    optimizers = [sgd(model) for model in (first, second, third)]
    handles = [
        thinwire.attach(ddp, optimizer, scheme=scheme)
        for ddp, optimizer, scheme in zip(
            ddps, optimizers, ("dgc:density=0.05", "onebit", "topk:density=0.05")
        )
    ]
    for step in range(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (
            loss_of(ddps[0], rank, step)
            + loss_of(ddps[1], rank, step)
            + loss_of(ddps[2], rank, step)
        ).backward()
        for optimizer in optimizers:
            optimizer.step()
    for handle in handles:
        handle.check_replicas()
        assert handle.report().steps == 6
    assert same_everywhere(weights(third)) and not same_everywhere(weights(first))


def joining(rank, world):
    for scheme in (None, "dense", "dgc:density=0.05,values=f32", "powersgd"):
        model = net()
        ddp, optimizer = wrap(model), sgd(model)
        handle = thinwire.attach(ddp, optimizer, scheme=scheme, check_every=2) if scheme else None
        with Join([ddp]):
            train(ddp, optimizer, rank, range(5 + 2 * rank))
        assert same_everywhere(weights(model)), scheme
        if handle:
            assert handle.state_dict() and handle.report().steps == 5 + 2 * (world - 1), (
                handle.report()
            )


CASES = {2: (accumulation, unused, static_graph, bucket_views, autocast, joining), 4: (several,)}


@pytest.mark.parametrize(
    "world,case",
    [pytest.param(world, case, id=case.__name__) for world in CASES for case in CASES[world]],
)
def test_works_with(world, case):
    run(world, case)


def scaled(rank, world):
    """GradScaler: bits do not depend on the scale while nothing overflows. The scaler sees an
    overflow on all ranks."""
    results = []
    for scheme, scale in (
        ("dense", None),
        ("dense", 2.0**10),
        ("dgc:density=0.05,values=f32", None),
        ("dgc:density=0.05,values=f32", 2.0**10),
    ):
        model = net()
        ddp, optimizer = wrap(model), sgd(model)
        scaler = torch.amp.GradScaler(
            "cpu", init_scale=scale or 1.0, growth_interval=3, enabled=scale is not None
        )
        handle = thinwire.attach(ddp, optimizer, scheme=scheme, scaler=scaler)
        for step in range(10):
            optimizer.zero_grad()
            scaler.scale(loss_of(ddp, rank, step)).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append(weights(model))
        assert scale is None or scaler.get_scale() == 2.0**13
        assert handle.report().skipped == 0
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[2], results[3]), "a change of scale has changed the residual"

    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.05", scaler=scaler)
    for step in range(6):
        before = weights(model)
        optimizer.zero_grad()
        loss = loss_of(ddp, rank, step) * (1e38 if step == 3 and rank == 1 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, weights(model)) == (step == 3)
    assert scaler.get_scale() == 2.0**3 and handle.report().skipped == 1
    assert same_everywhere(weights(model))
    with pytest.raises(ValueError, match="clip"):
        thinwire.attach(wrap(net()), sgd(net()), scheme="dgc:clip=1", scaler=scaler)


def test_grad_scaler():
    run(2, scaled)


def rebuilt(rank, world):
    """DDP rebuilds its buckets after the first step, and memory follows its parameters."""
    model = torch.nn.Sequential()
    torch.manual_seed(0)
    late = torch.nn.Linear(20, 24)  # registered last, used first
    body = torch.nn.Sequential(torch.nn.Linear(24, 24), torch.nn.ReLU(), torch.nn.Linear(24, 10))

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.late = body, late

        def forward(self, x):
            return self.body(torch.relu(self.late(x)))

    model = Odd()
    ddp, optimizer = (
        wrap(model, bucket_cap_mb=0.002),
        sgd(model, momentum=0, lr=0.0),
    )  # weights stay: residuals are sums of gradients
    handle = thinwire.attach(ddp, optimizer, scheme="topk:density=0.001,select=exact,values=f32")
    layouts, sent = (
        [],
        {name: torch.zeros(parameter.numel()) for name, parameter in model.named_parameters()},
    )
    taken = {name: torch.zeros(parameter.numel()) for name, parameter in model.named_parameters()}
    alone = Odd()
    for step in range(3):
        model.zero_grad()
        loss_of(ddp, rank, step).backward()
        for name, parameter in model.named_parameters():
            sent[name] += parameter.grad.flatten()
        alone.zero_grad()
        loss_of(alone, rank, step).backward()
        for name, parameter in alone.named_parameters():
            taken[name] += parameter.grad.flatten()
        layouts.append(handle.state_dict()["layout"])
    assert layouts[0] != layouts[1] and layouts[1] == layouts[2]
    for name in sent:  # conservation, over all workers and the rebuilt buckets
        kept = handle.state_dict()["entries"][name + "/v"].clone()
        dist.all_reduce(kept)
        dist.all_reduce(taken[name])
        torch.testing.assert_close(kept + world * sent[name], taken[name], rtol=1e-5, atol=1e-6)


def test_memory_survives_the_rebuild_of_buckets():
    run(2, rebuilt)


def switches(rank, world):
    """Any scheme may follow any other: sent plus kept equals given."""
    model, alone = net(), net()
    ddp, optimizer = wrap(model), sgd(model, momentum=0, lr=0.0)
    handle = thinwire.attach(ddp, optimizer, scheme="topk:density=0.01,values=f32")
    plan = [
        None,
        None,
        None,
        {"density": 0.1},
        None,
        "onebit",
        None,
        "dense",
        None,
        "powersgd",
        None,
        "bf16",
        "topk:density=0.05",
        None,
    ]
    sent, taken = torch.zeros_like(weights(model)), torch.zeros_like(weights(model))
    for step, change in enumerate(plan):
        if isinstance(change, str):
            handle.set_scheme(change)
        elif change:
            handle.set_scheme(**change)
        model.zero_grad()
        loss_of(ddp, rank, step).backward()
        sent += torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        alone.zero_grad()
        loss_of(alone, rank, step).backward()
        taken += torch.cat([parameter.grad.flatten() for parameter in alone.parameters()])
        if step in (4, 6, 7, 10, 13):
            entries = handle.state_dict()["entries"]
            kept = torch.cat(
                [
                    entries.get(name + "/v", torch.zeros(p.numel()))
                    for name, p in model.named_parameters()
                ]
            )
            total = taken.clone()
            dist.all_reduce(kept)
            dist.all_reduce(total)
            # bf16 rounds its sums for good
            torch.testing.assert_close(
                kept + world * sent, total, rtol=1e-4, atol=2e-2 if step > 10 else 1e-5
            )
    assert handle.report().steps == len(plan)


def test_schemes_may_change_in_mid_run():
    run(2, switches)


def logs(rank, world):
    class Writer:
        def __init__(self):
            self.rows = []

        def add_scalar(self, tag, value, step):
            self.rows.append((tag, value, step))

    model, seen, writer = net(), [], Writer()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(
        ddp, optimizer, scheme="dense", callback=lambda report: seen.append(report.step)
    )
    handle.on_step(lambda report: seen.append(-report.step), every=4)
    handle.log_to(writer, every=5)
    handle.schedule({3: "dgc:density=0.1", 6: {"density": 0.01}})
    for step in range(10):
        train(ddp, optimizer, rank, [step])
        assert handle.scheme.startswith(
            "dense" if step < 2 else "dgc:density=0.1," if step < 5 else "dgc:density=0.01,"
        ), (step, handle.scheme)
        assert bool(optimizer.state[model[0].weight]) == (step < 2), (
            "who has what momentum has gathered"
        )
    assert seen == [1, 2, 3, 4, -4, 5, 6, 7, 8, -8, 9, 10]
    assert {step for _, _, step in writer.rows} == {5, 10} and (
        "thinwire/skipped",
        0.0,
        5,
    ) in writer.rows
    assert handle.residual_norms()["0.weight"] > 0
    assert same_everywhere(weights(model))


def test_callbacks_schedules_and_writers():
    run(2, logs)


def writes_events(rank, world, folder):
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.1")
    handle.log_to(folder, every=5)
    train(ddp, optimizer, rank, range(10))
    return handle.step_report


def test_tensorboard_reads_what_log_to_wrote(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    last = run(2, writes_events, str(tmp_path))[0]
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert "thinwire/ratio" in events.Tags()["scalars"]
    rows = events.Scalars("thinwire/payload_bytes")
    assert [row.step for row in rows] == [5, 10] and rows[
        -1
    ].value == last.payload_bytes  # of rank 0 alone


def plain_form(rank, world):
    results = []
    for plain in (False, True):
        model = net()
        ddp, optimizer = wrap(model), sgd(model, weight_decay=0.01)
        if plain:
            handle = thinwire.HookState("dgc", density=0.05, model=model, optimizer=optimizer)
            ddp.register_comm_hook(handle, thinwire.hook)
        else:
            handle = thinwire.attach(ddp, optimizer, scheme="dgc", density=0.05)
        train(ddp, optimizer, rank, range(8), poison={(5, 1)})
        results.append(weights(model))
        assert handle.report().skipped == 1 and "0.weight/v" in handle.state_dict()["entries"]
    assert torch.equal(*results)

    model = net()  # no model, no optimizer, a state from elsewhere
    ddp, optimizer = wrap(model), sgd(model, momentum=0)
    state = thinwire.HookState("topk", density=0.05)
    with pytest.raises(RuntimeError, match="no step"):
        state.report()
    ddp.register_comm_hook(state, thinwire.hook)
    train(ddp, optimizer, rank, range(4))
    names = {name for bucket in state.state_dict()["layout"] for name in bucket}
    assert names == {f"parameter{i}" for i in range(6)}
    model = net()
    optimizer = sgd(model)
    unheard = thinwire.HookState("dgc", model=model, optimizer=optimizer)
    with pytest.raises(RuntimeError, match="never called"):
        train(wrap(model), optimizer, rank, range(1))
    del unheard
    with pytest.raises(ValueError, match="momentum"):
        ddp = wrap(net())
        ddp.register_comm_hook(thinwire.HookState("dgc"), thinwire.hook)
        loss_of(ddp, rank, 0).backward()


def test_the_plain_hook_gives_the_same_bits():
    run(2, plain_form)
