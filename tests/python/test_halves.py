"""test_halves: models with parameters in bfloat16 or float16, in all layers or in some: attach()
takes them, memory is float32, and the promises are those for float32."""

# SPDX-License-Identifier: Apache-2.0
import io

import pytest
import torch
import thinwire
from thinwire import _connection, _momentum, _native
from torch.nn.parallel import DistributedDataParallel
from workers import batch, run, same_everywhere, sgd, wrap

SCHEMES = ["dense", "bf16", "dgc:density=0.05", "topk:density=0.05", "onebit", "powersgd:rank=2"]
POISON = ((4, 1), (5, 0))
KINDS = {
    "float32": [torch.float32] * 4,
    "bfloat16": [torch.bfloat16] * 4,
    "float16": [torch.float16] * 4,
    "mixed": [torch.bfloat16, torch.float32, torch.bfloat16, torch.float32],
}


class Net(torch.nn.Module):
    """Layers of several types, as a model with norms in float32 has them."""

    def __init__(self, kind, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(20, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 32),
                  torch.nn.Linear(32, 10)]
        self.layers = torch.nn.ModuleList(
            layer.to(dtype) for layer, dtype in zip(layers, KINDS[kind]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x.to(layer.weight.dtype))
            x = x if i == 3 else torch.relu(x)
        return x.float()


def weights(model):
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


def train(ddp, optimizer, rank, steps, poison=()):
    for step in steps:
        optimizer.zero_grad()
        x, y = batch(rank, step)
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        if (step, rank) in poison:
            loss = loss * float("inf")
        loss.backward()
        optimizer.step()


def start(kind, scheme=None, seed=0, attach=None, **options):
    model = Net(kind, seed)
    wrapped, optimizer = wrap(model), sgd(model, **options)
    if scheme is None:
        return model, wrapped, optimizer, None
    handle = thinwire.attach(wrapped, optimizer, scheme=scheme, check_every=1, **(attach or {}))
    return model, wrapped, optimizer, handle


def copied(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(rank, world, kind, scheme, streams, attach):
    """Replicas are identical, skipped steps change nothing, and a resumed run has the same bits."""
    _connection.STREAMS = streams
    model, ddp, optimizer, handle = start(kind, scheme, attach=attach, weight_decay=0.01)
    types = [parameter.dtype for parameter in model.parameters()]
    train(ddp, optimizer, rank, range(4))
    before = weights(model).clone()
    train(ddp, optimizer, rank, range(4, 6), POISON)
    assert handle.report().skipped == 2 and torch.equal(weights(model), before)
    saved = copied({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "handle": handle.state_dict()})
    train(ddp, optimizer, rank, range(6, 10))
    assert same_everywhere(weights(model)) and not torch.equal(weights(model), before)
    assert [parameter.dtype for parameter in model.parameters()] == types
    entries = handle.state_dict()["entries"]
    assert all(value.dtype == torch.float32 for value in entries.values()
               if isinstance(value, torch.Tensor))

    again, ddp, optimizer, other = start(kind, scheme, seed=7, attach=attach, weight_decay=0.01)
    again.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    other.load_state_dict(saved["handle"])
    train(ddp, optimizer, rank, range(6, 10))
    assert torch.equal(weights(again), weights(model))
    for name, value in other.state_dict()["entries"].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, entries[name]), name
    report = handle.report()
    return weights(model), entries, (report.payload_bytes, report.dense_bytes)


def same(a, b):
    for (w, entries, report), (w2, entries2, report2) in zip(a, b):
        assert torch.equal(w, w2) and report == report2
        assert entries.keys() == entries2.keys()
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, entries2[name]), name


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["bfloat16", "mixed"])
def test_replicas_skipped_steps_and_resumed_runs(kind, scheme):
    usual = run(2, resumed, kind, scheme, False, {})
    if scheme.partition(":")[0] not in ("onebit", "powersgd"):  # those that run on a device
        same(usual, run(2, resumed, kind, scheme, True, {}))


@pytest.mark.parametrize("kind, scheme, attach", [
    ("float16", "dgc:density=0.05", {}),
    ("float16", "dense", {}),
    ("mixed", "dgc:density=0.05,clip=0.5", {}),
    ("mixed", "dgc:density=0.05", {"exchange": "split"}),
    ("mixed", "powersgd:rank=2", {"fuse_mb": 1.0}),
    ("mixed", "signum", {}),
    ("mixed", "dgc:density=0.05,nesterov=on", {}),
])
def test_other_types_and_exchanges(kind, scheme, attach):
    run(2, resumed, kind, scheme, False, attach)


def as_ddp(rank, world, kind):
    model, ddp, optimizer, _ = start(kind)
    train(ddp, optimizer, rank, range(6))
    other, ddp, optimizer, handle = start(kind, "dense")
    train(ddp, optimizer, rank, range(6))
    assert torch.equal(weights(model), weights(other))
    elements = sum(parameter.numel() for parameter in model.parameters())
    size = sum(parameter.nbytes for parameter in model.parameters())
    report = handle.report()
    assert (report.dense_bytes, report.payload_bytes) == (6 * 4 * elements, 6 * size)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "mixed"])
def test_dense_is_plain_ddp_to_the_bit(kind):
    run(3, as_ddp, kind)


def momentum(rank, world, nesterov):
    """To the scheme in float32; back as the mean, rounded to the type of the buffers."""
    factor = 0.9 if nesterov else 1.0  # Nesterov's form keeps the momentum times the buffer
    model, ddp, optimizer, _ = start("mixed", nesterov=nesterov)
    train(ddp, optimizer, rank, range(3))
    buffers = {name: optimizer.state[parameter]["momentum_buffer"].clone()
               for name, parameter in model.named_parameters()}
    assert buffers["layers.0.weight"].dtype == torch.bfloat16
    ddp = wrap(model)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.05,values=f32")
    entries = handle.state_dict()["entries"]
    for name, buffer in buffers.items():
        assert torch.equal(entries[name + "/u"], factor * buffer.float().flatten()), name
        assert "momentum_buffer" not in optimizer.state[dict(model.named_parameters())[name]]
    train(ddp, optimizer, rank, range(3, 6))
    own = {name: value for name, value in handle.state_dict()["entries"].items()
           if name.endswith("/u")}
    handle.detach()
    for name, parameter in model.named_parameters():
        mean = own[name + "/u"] / factor / world
        torch.distributed.all_reduce(mean)
        buffer = optimizer.state[parameter]["momentum_buffer"]
        assert buffer.dtype == parameter.dtype
        assert torch.equal(buffer.flatten(), mean.to(parameter.dtype)), name
    train(ddp, optimizer, rank, range(6, 8))
    assert same_everywhere(weights(model))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_goes_to_the_scheme_and_back(nesterov):
    run(2, momentum, nesterov)


def everything_sent(rank, world, nesterov):
    """With all elements sent in f32, training is that of plain DDP, to the rounding of bf16."""
    plain, ddp, optimizer, _ = start("mixed", weight_decay=0.05, nesterov=nesterov, lr=0.03)
    train(ddp, optimizer, rank, range(10))
    model, ddp, optimizer, handle = start("mixed", "dgc:density=1,mask=off,values=f32",
                                          weight_decay=0.05, nesterov=nesterov, lr=0.03)
    first = weights(model).clone()
    train(ddp, optimizer, rank, range(10))
    decay = [value for name, value in handle.state_dict()["entries"].items()
             if name.endswith("/decay")]
    assert decay and all(value.dtype == torch.float32 for value in decay)
    moved = torch.linalg.vector_norm(weights(plain) - first)
    assert torch.linalg.vector_norm(weights(model) - weights(plain)) < 0.05 * moved


@pytest.mark.parametrize("nesterov", [False, True])
def test_weight_decay_goes_through_the_momentum(nesterov):
    run(2, everything_sent, nesterov)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("nesterov", [False, True])
def test_decay_has_the_same_bits_on_the_cpu_and_on_a_device(dtype, nesterov):
    torch.manual_seed(1)
    weight, gradient = torch.randn(2, 7, 33).to(dtype)
    memory = torch.randn(7, 33)
    rows = [(weight, memory.clone(), gradient, torch.empty_like(weight)) for _ in range(2)]
    _native.add_decay(0.9, 0.01, nesterov, 3.0, *rows[0])
    _momentum._add_decay(0.9, 0.01, nesterov, torch.tensor(3.0), None, [rows[1]])
    for one, other in zip(*rows):
        assert torch.equal(one, other)
    added = 0.01 * weight.float()
    grown = 0.9 * (memory + added) if nesterov else 0.9 * memory + added
    assert torch.allclose(rows[0][1], grown)
    shown = grown + added if nesterov else grown
    assert torch.allclose(rows[0][3].float(), gradient.float() + 3 * shown, rtol=1e-2, atol=1e-2)
    with pytest.raises(RuntimeError, match="memory of float32"):
        _native.add_decay(0.9, 0.01, nesterov, 1.0, weight.half(), memory.double(), gradient.half(),
                          gradient.half())


def unused(rank, world):
    """A layer that no rank uses keeps its weights; what the scheme returns for it is kept."""
    model = Net("mixed")
    model.spare = torch.nn.Linear(4, 4).bfloat16()
    ddp, optimizer = wrap(model, find_unused_parameters=True), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme="topk:density=0.05,values=f32", check_every=1)
    spare = weights(model.spare).clone()
    train(ddp, optimizer, rank, range(2))
    state = handle.state_dict()
    state["entries"]["spare.weight/v"] = torch.full((16,), 1000.0)
    handle.load_state_dict(state)
    train(ddp, optimizer, rank, range(2, 5))
    assert torch.equal(weights(model.spare), spare)
    assert torch.equal(handle.state_dict()["entries"]["spare.weight/v"], torch.full((16,), 1000.0))
    assert same_everywhere(weights(model))


def test_unused_parameters_lose_nothing():
    run(2, unused)


def changed(rank, world):
    """Another scheme takes over what was not sent; dense pays it with the next gradient."""
    model, ddp, optimizer, handle = start("mixed", "topk:density=0.05,values=f32")
    train(ddp, optimizer, rank, range(4))
    assert sum(handle.residual_norms().values()) > 0
    handle.set_scheme("onebit", memory="residual")
    train(ddp, optimizer, rank, range(4, 6))
    handle.set_scheme("dense")
    train(ddp, optimizer, rank, range(6, 8))
    assert not handle.residual_norms() and same_everywhere(weights(model))


def test_schemes_change_in_mid_run():
    run(2, changed)


def between_types(rank, world, before, now):
    """A state is float32, so a run may go on in other types, whose buckets DDP cuts otherwise."""
    model, ddp, optimizer, handle = start(before, "dgc:density=0.05")
    train(ddp, optimizer, rank, range(4))
    state = copied(handle.state_dict())
    other, ddp, optimizer, resumed = start(now, "dgc:density=0.05")
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    train(ddp, optimizer, rank, range(4, 5))
    after = resumed.state_dict()
    assert after["steps"] == 5
    types = {name: parameter.dtype for name, parameter in other.named_parameters()}
    assert all(len({types[name] for name in bucket}) == 1 for bucket in after["layout"])
    train(ddp, optimizer, rank, range(5, 8))
    assert same_everywhere(weights(other))


@pytest.mark.parametrize("before, now", [("float32", "mixed"), ("mixed", "bfloat16")])
def test_states_fit_other_types(before, now):
    run(2, between_types, before, now)


def hooked(rank, world):
    model, ddp, optimizer, _ = start("mixed")
    state = thinwire.HookState("dgc:density=0.05", model=model, optimizer=optimizer, check_every=1)
    ddp.register_comm_hook(state, thinwire.hook)
    train(ddp, optimizer, rank, range(4))
    other, ddp, optimizer, _ = start("mixed", "dgc:density=0.05")
    train(ddp, optimizer, rank, range(4))
    assert torch.equal(weights(model), weights(other))


def test_the_plain_hook_takes_them_too():
    run(2, hooked)


def scaled(rank, world):
    """float16 sums of momentum may be too large for the type: the step is skipped on all ranks, the
    scale is lowered, and training goes on."""
    model = Net("float32")
    model.layers[0].half()
    ddp, optimizer = wrap(model), sgd(model, lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26, growth_interval=1000)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.5", scaler=scaler)
    for step in range(30):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        scaler.scale(torch.nn.functional.cross_entropy(ddp(x), y)).backward()
        # A GradScaler refuses to unscale float16 in place, so that part is done by hand.
        skipped = not all(bool(p.grad.isfinite().all()) for p in model.parameters())
        for parameter in model.parameters():
            parameter.grad = (parameter.grad.float() / scaler.get_scale()).to(parameter.dtype)
        if skipped:
            scaler.update(scaler.get_scale() / 2)
        else:
            optimizer.step()
    assert 0 < handle.report().skipped < 25 and scaler.get_scale() < 2.0**26
    assert same_everywhere(weights(model)) and bool(weights(model).isfinite().all())


def test_averages_that_float16_cannot_hold_are_skipped():
    run(2, scaled)


def refused(rank, world):
    for dtype, advice in ((torch.float64, "model.float"), (torch.complex64, "view_as_real")):
        model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(4, dtype=dtype))])
        ddp = DistributedDataParallel(model)
        with pytest.raises(ValueError, match=f"expected float32, bfloat16 or float16.*{advice}"):
            thinwire.attach(ddp, None, scheme="topk")
    model = Net("mixed")
    with pytest.raises(ValueError, match="expected float32 on the CPU.*delay= and inspect"):
        thinwire.attach(model, sgd(model), scheme="topk", delay=1)
    with pytest.raises(ValueError, match="'layers.0.weight': expected float32 on the CPU"):
        thinwire.inspect(model, lambda model, x: model(x).sum(), [torch.randn(2, 20)])


def test_what_is_refused_says_why():
    run(2, refused)
