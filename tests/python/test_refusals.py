"""test_refusals: unusual models that attach() accepts, and those that it rejects,
with the reason."""

# SPDX-License-Identifier: Apache-2.0
import copy
import gc
import os
import pickle
import threading

import pytest
import torch
import thinwire
from torch.nn.parallel import DistributedDataParallel
from workers import loss_of, net, run, same_everywhere, sgd, train, weights, wrap


def ignored(rank, world, form):
    """Parameters that DDP was told to ignore belong to each rank: they are neither
    compared nor saved."""
    model = net()
    model.own = torch.nn.Linear(4, 4)
    with torch.no_grad():
        model.own.weight += rank
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        model, ["own.weight", "own.bias"]
    )
    inner = torch.nn.Sequential(*list(model.children())[:-1])
    forward, model.forward = model.forward, lambda x: inner(x) + model.own(x[:, :4]).sum() * 1e-3
    ddp, optimizer = wrap(model), sgd(model)
    if form == "attach":
        handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.1", check_every=1)
    else:
        handle = thinwire.HookState(
            "dgc:density=0.1", model=model, optimizer=optimizer, check_every=1
        )
        ddp.register_comm_hook(handle, thinwire.hook)
    train(ddp, optimizer, rank, range(3))
    handle.check_replicas()
    assert not [name for name in handle.state_dict()["entries"] if name.startswith("own")]
    assert same_everywhere(weights(inner)) and not same_everywhere(weights(model.own))


@pytest.mark.parametrize("form", ["attach", "plain"])
def test_parameters_that_ddp_ignores(form):
    run(2, ignored, form)


class Odd(torch.nn.Module):
    """Parameters with dimensions of size 1, whose strides are arbitrary."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.token = torch.nn.Parameter(torch.randn(1, 1, 20).expand(1, 1, 20).transpose(0, 1))
        self.row = torch.nn.Parameter(torch.randn(10, 1).t())
        self.body = net()

    def forward(self, x):
        return self.body(x + self.token.reshape(1, 20)) + self.row


def strides(rank, world):
    results = []
    for scheme in (None, "dgc:density=1,mask=off,values=f32"):
        model = Odd()
        ddp, optimizer = wrap(model), sgd(model, weight_decay=0.05)
        if scheme:
            thinwire.attach(ddp, optimizer, scheme=scheme)
        train(ddp, optimizer, rank, range(5))
        results.append(weights(model))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_strides_of_dimensions_of_size_one():
    run(2, strides)


def compiled(rank, world):
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(
        torch.compile(ddp, backend="eager"), optimizer, scheme="dgc:density=0.1"
    )
    with pytest.raises(RuntimeError, match="attached already"):
        thinwire.attach(ddp, optimizer)
    train(ddp, optimizer, rank, range(2))
    saved = handle.state_dict()
    inside = wrap(
        torch.compile(net(), backend="eager"), bucket_cap_mb=25
    )  # a compiled module inside DDP has the same names
    optimizer = sgd(inside)
    handle = thinwire.attach(inside, optimizer, scheme="dgc:density=0.1")
    handle.load_state_dict(saved)
    assert "0.weight/v" in handle.state_dict()["entries"]
    train(inside, optimizer, rank, range(2))

    def names(state):
        return {name for name in state["entries"] if name.endswith("/v")}

    assert names(handle.state_dict()) == names(saved)


def test_compiled_models_are_unwrapped():
    run(2, compiled)


def refused(rank, world):
    def says(*parts, model, **options):
        with pytest.raises((TypeError, ValueError)) as caught:
            thinwire.attach(model, sgd(model), **options)
        assert all(part in str(caught.value) for part in parts), caught.value

    embedding = torch.nn.Sequential(torch.nn.Embedding(5, 3, sparse=True), torch.nn.Linear(3, 2))
    says("'0'", "sparse=True", "sparse=False", model=wrap(embedding))
    bag = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.EmbeddingBag(5, 3, sparse=True))
    says("'1'", "EmbeddingBag", model=wrap(bag))
    spectral = torch.nn.ParameterList(
        [
            torch.nn.Parameter(torch.randn(3, dtype=torch.complex64)),
            torch.nn.Parameter(torch.randn(3)),
        ]
    )
    says("'0'", "complex64", "view_as_real", model=DistributedDataParallel(spectral))
    mixed = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2).double())
    says("'1.weight'", "float64", "float()", model=wrap(mixed))
    fake = type("FSDPLinear", (torch.nn.Linear,), {})(2, 2)
    says("FSDPLinear", "shards", model=fake)
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        python = wrap(net())
    says("python_reducer", model=python)
    frozen = net()
    ddp = wrap(frozen)
    frozen.requires_grad_(False)
    frozen[0].requires_grad_(
        True
    )  # fewer than DDP averages: DDP still hands over all of them
    thinwire.attach(ddp, sgd(frozen[0]), scheme="topk:density=0.1")


def test_models_that_are_refused():
    run(1, refused)


def early(rank, world):
    """A checkpoint before the first step, and between a load and the first step, as Lightning
    makes one."""

    def fresh(**options):
        model = net()
        ddp, optimizer = wrap(model), sgd(model)
        state = thinwire.HookState("dgc", density=0.1, model=model, optimizer=optimizer, **options)
        ddp.register_comm_hook(state, thinwire.hook)
        return model, ddp, optimizer, state

    model, ddp, optimizer, state = fresh()
    nothing = state.full_state_dict()
    assert state.state_dict()["steps"] == 0 and (nothing is not None) == (rank == 0)
    train(ddp, optimizer, rank, range(3))
    box = [state.full_state_dict()]
    torch.distributed.broadcast_object_list(box)
    model, ddp, optimizer, state = fresh()
    state.load_state_dict(box[0])
    again = [state.full_state_dict()]
    torch.distributed.broadcast_object_list(again)
    assert [shard["steps"] for shard in again[0]["shards"]] == [3] * world
    for before, after in zip(box[0]["shards"], again[0]["shards"]):
        assert all(
            torch.equal(torch.as_tensor(value), torch.as_tensor(after["entries"][name]))
            for name, value in before["entries"].items()
        )
    train(ddp, optimizer, rank, range(3, 5))
    assert state.step_report.step == 5
    with pytest.raises(ValueError, match="version"):
        fresh()[3].load_state_dict({"version": 99})
    empty = [nothing]
    torch.distributed.broadcast_object_list(empty)
    model, ddp, optimizer, state = fresh()
    state.load_state_dict(empty[0])
    train(ddp, optimizer, rank, range(2))


def test_states_before_the_first_step():
    run(2, early)


def copies(rank, world):
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    state = thinwire.HookState("dgc", density=0.1, model=model, optimizer=optimizer)
    holder = torch.nn.Module()
    holder.inner, holder.state = model, state
    ddp.register_comm_hook(state, thinwire.hook)
    assert copy.deepcopy(holder).state is state
    train(ddp, optimizer, rank, range(2))
    ema = copy.deepcopy(holder)
    assert ema.state is state and ema.inner[0].weight is not model[0].weight
    train(ddp, optimizer, rank, range(2, 4))
    with pytest.raises(TypeError, match=r"state_dict\(\)"):
        pickle.dumps(state)
    assert (
        ddp._get_ddp_logging_data()["comm_hook"] == "thinwire_hook"
        and pickle.loads(pickle.dumps(thinwire.hook)) is thinwire.hook
    )
    attached = wrap(net())
    thinwire.attach(attached, None, scheme="topk")
    loss_of(attached, rank, 0).backward()
    assert attached._get_ddp_logging_data()["comm_hook"] == "thinwire topk"


def test_copies_and_names():
    run(2, copies)


def threads_and_files():
    gc.collect()
    return (
        threading.active_count(),
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
    )


def leaks(rank, world, form):
    def once():
        model, heard = net(), []
        ddp, optimizer = wrap(model), sgd(model)
        if form == "plain":
            handle = thinwire.HookState(
                "dgc:density=0.1",
                model=model,
                optimizer=optimizer,
                callback=lambda report: heard.append(handle),
            )
            ddp.register_comm_hook(handle, thinwire.hook)
        else:
            handle = thinwire.attach(
                ddp,
                None if form == "without" else optimizer,
                scheme="topk:density=0.1",
                callback=lambda report: heard.append(handle),
            )
        train(ddp, optimizer, rank, range(3))
        assert len(heard) == 3
        if form == "detached":
            handle.detach()
            train(ddp, optimizer, rank, range(2))
            assert len(heard) == 3, "a detached handle goes on telling"

    for _ in range(2):
        once()
    before = threads_and_files()
    for _ in range(6):
        once()
    after = threads_and_files()
    assert all(now <= then + 1 for then, now in zip(before, after)), (before, after)


@pytest.mark.parametrize("form", ["detached", "dropped", "without", "plain"])
def test_a_callback_keeps_no_handle_alive(form):
    run(2, leaks, form)


def scaled(rank, world, given):
    """What a scheme keeps has the scale of the gradients, so attach() must know the scaler."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**4) for _ in range(2)]
    thinwire.attach(ddp, optimizer, scheme="topk", scaler=scalers[1] if given else None)
    scalers[0].scale(loss_of(ddp, rank, 0)).backward()
    what = "another one" if given else "none"
    with pytest.raises(RuntimeError, match=f"given {what}.*scaler=scaler"):
        scalers[0].step(optimizer)
    off = torch.amp.GradScaler("cpu", enabled=False)
    if not given:
        off.step(optimizer)


@pytest.mark.parametrize("given", [False, True], ids=["none", "another"])
def test_a_scaler_that_attach_does_not_know(given):
    run(2, scaled, given)
