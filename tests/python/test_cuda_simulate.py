"""test_cuda_simulate: virtual workers of a CUDA model: the bits of processes on CUDA, and of
virtual workers on the CPU. As test_cuda.py it needs a GPU and nothing but torch: python
tests/python/test_cuda_simulate.py runs it without pytest."""

# SPDX-License-Identifier: Apache-2.0
import copy
import sys

import torch
import thinwire
from test_cuda import SCHEMES, STEPS, Fixed, course, weights
from workers import run, sgd

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
except ImportError:
    pass

WORLD = 2
DECAY = 2.0**-7  # as in test_cuda.py


def simulated(device, scheme, scaler=None, channels_last=False, **options):
    model = Fixed().to(device)
    if channels_last:
        model.to(memory_format=torch.channels_last)
    optimizer = sgd(model, weight_decay=DECAY)
    sim = thinwire.simulate(model, optimizer, WORLD, scheme, scaler=scaler, bucket_cap_mb=0.004,
                            **options)
    return sim, model, optimizer


def go(sim, model, optimizer, numbers, poison=(), scaler=None):
    for step in numbers:
        optimizer.zero_grad()
        for rank in range(WORLD):
            with sim.worker(rank):
                loss = model(rank, step, float("inf") if (step, rank) in poison else 1.0)
                (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


def remains(sim, model):
    report = sim.report()
    return (weights(model), copy.deepcopy(sim.state_dict()),
            (report.steps, report.skipped, report.payload_bytes))


def alike(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return torch.equal(one, other) if torch.is_tensor(one) else one == other


def expect_same(one, other, what):
    for part, a, b in zip(("weights", "state", "report"), one, other):
        assert alike(a, b), (what, part)


def virtual(device, scheme, **options):
    scaler = None
    if options.pop("scaler", False):
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=3)
    sim, model, optimizer = simulated(device, scheme, scaler, **options)
    go(sim, model, optimizer, range(STEPS), [(4, WORLD - 1), (7, 0)], scaler)
    return remains(sim, model)


def test_the_bits_of_processes_and_of_the_cpu():
    for scheme in [*SCHEMES, "onebit", "signum", "powersgd", "terngrad"]:
        found = virtual("cuda", scheme)
        expect_same(virtual("cpu", scheme), found, f"{scheme}, CPU")
        processes = run(WORLD, course, "cuda", "gloo", scheme, {}, seconds=200)
        assert torch.equal(processes[0][0], found[0]), f"{scheme}, processes"


def test_edges():
    for options in ({"scaler": True}, {"channels_last": True}, {"exchange": "split"},
                    {"fuse_mb": 0.001}):
        scheme = "dgc:density=0.05" if "fuse_mb" not in options else "powersgd"
        expect_same(virtual("cpu", scheme, **options), virtual("cuda", scheme, **options), options)


def test_states_move_between_devices():
    course_of, whole = {}, virtual("cpu", "dgc:density=0.05")
    for device in ("cpu", "cuda"):
        sim, model, optimizer = simulated(device, "dgc:density=0.05")
        go(sim, model, optimizer, range(5), [(4, WORLD - 1)])
        course_of[device] = copy.deepcopy((sim.state_dict(), model.cpu().state_dict(),
                                           optimizer.state_dict()))
    for saved_on, loaded_on in (("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")):
        state, of_model, of_optimizer = course_of[saved_on]
        sim, model, optimizer = simulated(loaded_on, "dgc:density=0.05")
        model.load_state_dict(of_model)
        optimizer.load_state_dict(of_optimizer)
        sim.load_state_dict(state)
        go(sim, model, optimizer, range(5, STEPS), [(7, 0)])
        assert torch.equal(weights(model), whole[0]), (saved_on, loaded_on)


def test_momentum_comes_back_to_the_device():
    found = {}
    for device in ("cpu", "cuda"):
        sim, model, optimizer = simulated(device, "dgc:density=0.05")
        go(sim, model, optimizer, range(5))
        sim.detach()
        optimizer.zero_grad()
        model(0, 5).backward()
        optimizer.step()
        buffers = [optimizer.state[one]["momentum_buffer"] for one in model.parameters()]
        assert all(buffer.device.type == device for buffer in buffers)
        found[device] = weights(model)
    assert torch.equal(found["cpu"], found["cuda"])


def test_batch_norm_of_every_worker():
    """Buffers and random numbers stay on the device; reports and advice work there."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.BatchNorm1d(16),
                                torch.nn.ReLU(), torch.nn.Dropout(0.1),
                                torch.nn.Linear(16, 10)).to("cuda")
    optimizer = sgd(model)
    sim = thinwire.simulate(model, optimizer, 4, "onebit", link="1gbit,1ms")
    for _ in range(5):
        x, y = torch.randn(64, 20, device="cuda"), torch.randint(10, (64,), device="cuda")
        optimizer.zero_grad()
        for _, (part, wanted) in sim.shares((x, y)):
            torch.nn.functional.cross_entropy(model(part), wanted).backward()
        optimizer.step()
    assert model[1].running_mean.is_cuda and sim.report().steps == 5
    assert 0 < sim.report().step_seconds() < 10


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("test_cuda_simulate: no GPU")
    for name in [name for name in list(globals()) if name.startswith("test_")]:
        if all(part in name for part in sys.argv[1:]):
            globals()[name]()
            print(f"{name}: ok", flush=True)
