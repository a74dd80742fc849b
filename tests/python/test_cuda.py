"""test_cuda: attach() on CUDA models, over NCCL and Gloo: the bits of the CPU, whatever the streams
do. It needs a GPU and nothing but torch: python tests/python/test_cuda.py runs it without pytest.

Two ranks share the one GPU. NCCL refuses that unless they seem to be on two machines.
"""

# SPDX-License-Identifier: Apache-2.0
import logging
import os
import sys

import torch
import torch.distributed as dist
import thinwire
from workers import net, run, same_everywhere, sgd
from torch.nn.parallel import DistributedDataParallel

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
except ImportError:
    pass

SCHEMES = ["dense", "fp16", "bf16", "topk:density=0.05", "topk:density=0.05,values=f32",
           "dgc:density=0.05", "dgc:density=0.05,clip=0.5", "dgc:density=0.02,warmup=8",
           "threshold", "atomo", "qsgd:form=coded"]
# Workers and the process group of DDP.
WAYS = [(1, "nccl"), (2, "gloo"), (2, "nccl")]
STEPS = 10
SLEEP = 20_000_000  # cycles: about 10 ms


def group_of(backend, rank):
    if backend != "nccl":
        return None
    os.environ.update(NCCL_HOSTID=f"host{rank}", NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
    return dist.new_group(backend="nccl")


class Fixed(torch.nn.Module):
    """A model with gradients that are the same on every device, and that the test chooses: the loss
    is the sum of parameters times given numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        shapes = [(64, 33), (33,), (16, 8, 3, 3), (1,), (0,), (1000, 7), (5, 5)]
        self.all = torch.nn.ParameterList(torch.randn(*shape) for shape in shapes)

    def forward(self, rank, step, factor=1.0):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        total = 0.0
        for parameter in self.all:
            given = factor * torch.randn(parameter.shape, generator=generator)
            given = given.to(parameter.device, non_blocking=True)
            total = total + (parameter * given).sum()
        return total


def weights(model):
    return torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])


def wrapped(model, device, group, **options):
    model.to(device)
    ids = None if device == "cpu" else [0]
    return DistributedDataParallel(model, device_ids=ids, process_group=group,
                                   **{"bucket_cap_mb": 0.004, **options})


def steps(ddp, optimizer, rank, numbers, poison=(), scaler=None, between=lambda step: None):
    for step in numbers:
        optimizer.zero_grad()
        loss = ddp(rank, step, float("inf") if (step, rank) in poison else 1.0)
        between(step)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


# What a run leaves behind: weights, the handle's state, and what its report counts.
def remains(model, handle):
    found = weights(model)
    assert same_everywhere(found)
    report = handle.report()
    return found, handle.state_dict(), (report.steps, report.skipped, report.payload_bytes)


def expect_same(usual, other, what):
    for (w, state, counted), (w2, state2, counted2) in zip(usual, other):
        assert torch.equal(w, w2), what
        assert counted == counted2, what
        assert state["entries"].keys() == state2["entries"].keys(), what
        for name, value in state["entries"].items():
            mine = state2["entries"][name]
            same = torch.equal(value, mine) if isinstance(value, torch.Tensor) else value == mine
            assert same, (what, name)


def course(rank, world, device, backend, scheme, options):
    group = group_of(backend, rank)
    model = Fixed()
    if options.get("channels_last"):
        model.to(memory_format=torch.channels_last)
    ddp = wrapped(model, device, group, gradient_as_bucket_view=bool(options.get("views")),
                  static_graph=bool(options.get("static")))
    # Powers of two: whether a device fuses a product and a sum then makes no difference.
    optimizer = sgd(model, weight_decay=2.0**-7, **options.get("optimizer", {}))
    scaler = None
    if options.get("scaler"):
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=3)
    handle = thinwire.attach(ddp, optimizer, scheme=scheme, scaler=scaler, check_every=4,
                             **options.get("attach", {}))
    poison = [(4, world - 1), (7, 0)] if options.get("poison", True) else []
    steps(ddp, optimizer, rank, range(STEPS), poison, scaler, options.get("between", int))
    return remains(model, handle)


def compare(schemes=("dgc:density=0.05",), ways=WAYS, **options):
    for world, backend in ways:
        for scheme in schemes:
            usual = run(world, course, "cpu", "gloo", scheme, options)
            other = run(world, course, "cuda", backend, scheme, options, seconds=200)
            expect_same(usual, other, (scheme, world, backend, options))


def test_bits_of_the_cpu():
    compare(SCHEMES)


def test_gradients_as_views_of_buckets():
    compare(["topk:density=0.05", "dgc:density=0.05", "dense"], views=True)


def test_static_graph():
    compare(static=True)


def test_channels_last():
    compare(["dgc:density=0.05", "bf16"], channels_last=True)


def test_nesterov():
    compare(optimizer={"nesterov": True})


def test_a_scaler_sees_skipped_steps_and_memory_follows_its_scale():
    compare(["dgc:density=0.05", "topk:density=0.05", "dense"], scaler=True)


def test_a_fused_optimizer_under_a_scaler():
    compare(ways=[(1, "nccl"), (2, "gloo")], scaler=True, optimizer={"fused": True})


# -- streams


def stressed(rank, world, backend, where):
    group = group_of(backend, rank)
    model = Fixed()
    ddp = wrapped(model, "cuda", group)
    optimizer = sgd(model, weight_decay=2.0**-7)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.05", check_every=0)

    def sleep(*_):
        if where == "compute":
            torch.cuda._sleep(SLEEP)
        address = handle._attachment.stream()
        if where == "ours" and address:
            with torch.cuda.stream(torch.cuda.ExternalStream(address)):
                torch.cuda._sleep(SLEEP)
        # Memory that goes back to the allocator at once must not be anybody's.
        for _ in range(4):
            torch.full((50_000,), float("nan"), device="cuda")

    for parameter in list(model.parameters())[::2]:
        parameter.register_hook(sleep)

    def between(step):
        sleep()
        if where == "side" and step % 2:
            torch.cuda.current_stream().wait_stream(torch.cuda.Stream())

    steps(ddp, optimizer, rank, range(STEPS), [(4, world - 1), (7, 0)], None, between)
    return remains(model, handle)


def test_slow_streams_change_nothing():
    for world, backend in WAYS:
        usual = run(world, course, "cpu", "gloo", "dgc:density=0.05", {})
        for where in ("compute", "ours", "side"):
            other = run(world, stressed, backend, where, seconds=200)
            expect_same(usual, other, (world, backend, where))


def on_another_stream(rank, world, backend):
    group = group_of(backend, rank)
    model = Fixed()
    ddp = wrapped(model, "cuda", group)
    optimizer = sgd(model, weight_decay=2.0**-7)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.05", check_every=0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        steps(ddp, optimizer, rank, range(STEPS), [(4, world - 1), (7, 0)])
    torch.cuda.current_stream().wait_stream(stream)
    return remains(model, handle)


def test_training_on_another_stream():
    for world, backend in WAYS:
        usual = run(world, course, "cpu", "gloo", "dgc:density=0.05", {})
        expect_same(usual, run(world, on_another_stream, backend, seconds=200), (world, backend))


def without_waits(rank, world, backend, scheme):
    """torch itself raises where something makes the host wait for the device."""
    group = group_of(backend, rank)
    model = Fixed()
    ddp = wrapped(model, "cuda", group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.9)
    thinwire.attach(ddp, optimizer, scheme=scheme, check_every=0)
    given = [torch.randn_like(parameter) for parameter in model.parameters()]

    def step():
        optimizer.zero_grad()
        ddp.module.forward = lambda *_: sum((parameter * one).sum() for parameter, one
                                            in zip(model.parameters(), given))
        ddp(rank, 0).backward()
        optimizer.step()

    for _ in range(3):
        step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_steps_do_not_wait_for_the_device():
    for scheme in ("dense", "bf16", "topk:density=0.05", "dgc:density=0.05"):
        run(1, without_waits, "nccl", scheme)


# -- checkpoints


def saved(rank, world, device, backend):
    group = group_of(backend, rank)
    model = Fixed()
    ddp = wrapped(model, device, group)
    optimizer = sgd(model, weight_decay=2.0**-7)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.05")
    steps(ddp, optimizer, rank, range(5))
    state = handle.state_dict()
    assert all(value.device.type == "cpu" for value in state["entries"].values()
               if isinstance(value, torch.Tensor))
    return state, model.cpu().state_dict(), optimizer.state_dict()


def loaded(rank, world, device, backend, checkpoints):
    group = group_of(backend, rank)
    state, model_state, optimizer_state = checkpoints[rank]
    model = Fixed()
    model.load_state_dict(model_state)
    ddp = wrapped(model, device, group)
    optimizer = sgd(model, weight_decay=2.0**-7)
    optimizer.load_state_dict(optimizer_state)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.05")
    handle.load_state_dict(state)
    steps(ddp, optimizer, rank, range(5, STEPS))
    return remains(model, handle)


def test_checkpoints_move_between_devices():
    for world, backend in ((2, "gloo"), (2, "nccl")):
        from_cpu = run(world, saved, "cpu", "gloo")
        from_cuda = run(world, saved, "cuda", backend)
        usual = run(world, loaded, "cpu", "gloo", from_cpu)
        expect_same(usual, run(world, loaded, "cuda", backend, from_cpu), "cpu to cuda")
        expect_same(usual, run(world, loaded, "cpu", "gloo", from_cuda), "cuda to cpu")
        expect_same(usual, run(world, loaded, "cuda", backend, from_cuda), "cuda to cuda")


# -- the rest of PyTorch


def changes(rank, world, device, backend):
    group = group_of(backend, rank)
    model = Fixed()
    ddp = wrapped(model, device, group)
    optimizer = sgd(model)
    seen = []
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.05", callback=seen.append)
    steps(ddp, optimizer, rank, range(4))
    handle.set_scheme("bf16")
    steps(ddp, optimizer, rank, range(4, 7), [(4, 0)])
    handle.set_scheme("topk", density=0.1)
    steps(ddp, optimizer, rank, range(7, STEPS))
    found = remains(model, handle)
    assert [one.step for one in seen] == list(range(1, STEPS + 1))
    handle.detach()
    steps(ddp, optimizer, rank, range(STEPS, STEPS + 3))
    return weights(model), *found[1:]


def test_schemes_change():
    for world, backend in WAYS:
        expect_same(run(world, changes, "cpu", "gloo"), run(world, changes, "cuda", backend),
                    (world, backend))


def as_hook(rank, world, device, backend):
    group = group_of(backend, rank)
    model = Fixed()
    ddp = wrapped(model, device, group)
    optimizer = sgd(model)
    state = thinwire.HookState("dgc:density=0.05", model=model, optimizer=optimizer,
                               process_group=ddp.process_group)
    ddp.register_comm_hook(state, thinwire.hook)
    steps(ddp, optimizer, rank, range(STEPS), [(4, 0)])
    return remains(model, state)


def test_a_plain_hook():
    for world, backend in WAYS:
        expect_same(run(world, as_hook, "cpu", "gloo"), run(world, as_hook, "cuda", backend),
                    (world, backend))


def without_optimizer(rank, world, device, backend):
    group = group_of(backend, rank)
    model = Fixed()
    ddp = wrapped(model, device, group)
    optimizer = sgd(model, momentum=0.0, weight_decay=2.0**-7)
    handle = thinwire.attach(ddp, None, scheme="topk:density=0.05")
    steps(ddp, optimizer, rank, range(STEPS), [(4, 0)])
    return remains(model, handle)


def test_without_an_optimizer():
    for world, backend in WAYS:
        expect_same(run(world, without_optimizer, "cpu", "gloo"),
                    run(world, without_optimizer, "cuda", backend), (world, backend))


class Partly(Fixed):
    def forward(self, rank, step, factor=1.0):
        kept = self.all
        self.all = kept[: len(kept) - (2 if step % 3 else 0)]
        try:
            return super().forward(rank, step, factor)
        finally:
            self.all = kept


def unused(rank, world, device, backend):
    group = group_of(backend, rank)
    model = Partly()
    ddp = wrapped(model, device, group, find_unused_parameters=True)
    optimizer = sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme="topk:density=0.05")
    steps(ddp, optimizer, rank, range(STEPS), [(4, 0)])
    return remains(model, handle)


def test_unused_parameters_lose_nothing():
    for world, backend in WAYS:
        expect_same(run(world, unused, "cpu", "gloo"), run(world, unused, "cuda", backend),
                    (world, backend))


def real(rank, world, backend, compiled, autocast):
    """A network: nothing to compare with but the other ranks, and that it learns."""
    torch.cuda.set_device(0)
    group = group_of(backend, rank)
    model = net(width=64)
    # Compiled DDP wants buckets of at least a megabyte.
    ddp = wrapped(model, "cuda", group, bucket_cap_mb=25)
    run_it = torch.compile(ddp, backend="aot_eager") if compiled else ddp
    optimizer = sgd(model, lr=0.05)
    handle = thinwire.attach(run_it, optimizer, scheme="dgc", density=0.05, check_every=5)
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(64, 20, generator=generator).cuda()
    y = torch.randint(0, 10, (64,), generator=generator).cuda()
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            loss = torch.nn.functional.cross_entropy(run_it(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert same_everywhere(weights(model)) and handle.report().skipped == 0
    assert losses[-1] < 0.95 * losses[0], losses


def test_networks_compiled_and_under_autocast():
    for world, backend in WAYS:
        for compiled, autocast in ((False, False), (True, False), (False, True)):
            run(world, real, backend, compiled, autocast, seconds=300)


def test_stripes_and_fused_sums():
    compare(attach={"exchange": "split"})
    compare(schemes=("bf16",), attach={"fuse_mb": 0.01})


def warned(rank, world):
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("thinwire").addHandler(handler)
    model = Fixed()
    handle = thinwire.attach(wrapped(model, "cuda", None), sgd(model), scheme="threshold")
    assert not any("on the host" in text for text in told), told
    handle.set_scheme("atomo")
    assert any("works on the host: it decomposes" in text for text in told), told


def test_schemes_on_the_host_say_so():
    run(1, warned)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("test_cuda: no GPU")
    chosen = [name for name in list(globals()) if name.startswith("test_")
              and all(part in name for part in sys.argv[1:])]
    failed = []
    for name in chosen:
        try:
            globals()[name]()
            print(f"{name}: ok", flush=True)
        except AssertionError as error:
            failed.append(name)
            print(f"{name}: FAILED\n{error}", flush=True)
    sys.exit(f"{len(failed)} of {len(chosen)} failed: {', '.join(failed)}" if failed else 0)
