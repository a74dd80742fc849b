"""test_cuda_delay: delayed averaging of CUDA models, over NCCL and Gloo: the bits of the CPU,
whatever the streams do. As test_cuda.py it needs a GPU and nothing but torch: python
tests/python/test_cuda_delay.py runs it without pytest."""

# SPDX-License-Identifier: Apache-2.0
import copy
import sys
import time

import torch
import thinwire
from test_cuda import SLEEP, STEPS, WAYS, Fixed, group_of, weights
from thinwire import _connection
from workers import run, same_everywhere, sgd
from torch.nn.parallel import DistributedDataParallel

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
except ImportError:
    pass

DGC = {"scheme": "dgc", "density": 0.05, "momentum": 0.0}
COURSES = [
    {"scheme": "dense", "delay": 4},
    {**DGC, "delay": 5},
    {**DGC, "delay": 4, "local_steps": 3, "correction": "soft:book=b"},
    {"scheme": "bf16", "delay": 3, "correction": "ledger:clip=0.5"},
    {"scheme": "onebit", "momentum": 0.0, "delay": 6, "correction": "pull"},
    {"scheme": "dense", "delay": 0, "local_steps": 4, "correction": "none"},
    {"scheme": "topk", "density": 0.05, "delay": 3, "correction": "ledger"},
]


def attached(rank, device, group, settings, kind="SGD", channels_last=False, **options):
    model = Fixed().to(device)
    if channels_last:
        model.to(memory_format=torch.channels_last)
    # Numbers with which it makes no difference whether a device fuses a product and a sum.
    if kind == "SGD":
        optimizer = sgd(model, **{"momentum": 0.5, "weight_decay": 2.0**-7, **options})
    else:
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01, **options)
    handle = thinwire.attach(model, optimizer, process_group=group, check_every=3, **settings)
    return model, optimizer, handle


def steps(model, optimizer, rank, numbers, poison=(), between=lambda step: None):
    for step in numbers:
        optimizer.zero_grad()
        loss = model(rank, step, float("inf") if (step, rank) in poison else 1.0)
        between(step)
        loss.backward()
        optimizer.step()


def remains(model, handle):
    own = weights(model)
    with handle.anchor():
        anchor = weights(model)
    assert same_everywhere(anchor)
    assert torch.equal(own, weights(model))
    state = handle.state_dict()["entries"]
    report = handle.report()
    handle.drain()
    drained = weights(model)
    assert same_everywhere(drained)
    handle.check_replicas()
    return own, anchor, state, drained, (report.steps, report.skipped, report.messages,
                                         report.payload_bytes)


def expect_same(usual, other, what):
    for one, two in zip(usual, other):
        for place in (0, 1, 3):
            assert torch.equal(one[place], two[place]), (what, place)
        assert one[4] == two[4], (what, one[4], two[4])
        assert one[2].keys() == two[2].keys(), what
        for name, value in one[2].items():
            mine = two[2][name]
            same = torch.equal(value, mine) if isinstance(value, torch.Tensor) else value == mine
            assert same, (what, name)


def course(rank, device, group, settings, options, world, between=lambda _: 0):
    model, optimizer, handle = attached(rank, device, group, settings, **options)
    steps(model, optimizer, rank, range(STEPS), [(4, world - 1), (7, 0)], between)
    return remains(model, handle)


# Several in one process, whose start is what takes time.
def courses(rank, world, device, backend, all_settings, options={}):
    group = group_of(backend, rank)
    return [course(rank, device, group, settings, options, world) for settings in all_settings]


def compare(ways, all_settings, **options):
    for world in dict.fromkeys(world for world, _ in ways):
        usual = run(world, courses, "cpu", "gloo", all_settings, options)
        for backend in [backend for count, backend in ways if count == world]:
            other = run(world, courses, "cuda", backend, all_settings, options, seconds=200)
            for i, settings in enumerate(all_settings):
                expect_same([one[i] for one in usual], [one[i] for one in other],
                            (settings, world, backend, options))


def test_bits_of_the_cpu():
    compare(WAYS[1:], COURSES)
    compare(WAYS[:1], COURSES[:2])


def test_channels_last_and_fused():
    compare(WAYS[1:2], COURSES[1:2], channels_last=True)
    compare(WAYS[1:2], COURSES[:1], fused=True)


def adam(rank, world, backend):
    group = group_of(backend, rank)
    for settings in ({"scheme": "dense", "delay": 4},
                     {**DGC, "delay": 3, "correction": "soft:book=b"}):
        adam_course(rank, world, group, settings)


def adam_course(rank, world, group, settings):
    model, optimizer, handle = attached(rank, "cuda", group, settings, "AdamW", fused=True)
    steps(model, optimizer, rank, range(STEPS), [(4, world - 1), (7, 0)])
    found = remains(model, handle)
    moments = torch.cat([optimizer.state[one]["exp_avg_sq"].cpu().flatten()
                         for one in model.parameters() if one in optimizer.state])
    assert same_everywhere(moments) and bool((moments >= 0).all()) and bool(moments.any())
    assert found[4][1] == (1 if rank in (0, world - 1) else 0)
    steps(model, optimizer, rank, range(STEPS, STEPS + 3))
    handle.detach()
    assert same_everywhere(weights(model)) and torch.isfinite(weights(model)).all()
    for one in model.parameters():
        state = optimizer.state.get(one, {})
        assert all(value.device.type == "cuda" for value in state.values())


def test_adam_averages_its_moments():
    for backend in ("gloo", "nccl"):
        run(2, adam, backend, seconds=200)


# -- streams


def stressed(rank, world, backend):
    group = group_of(backend, rank)
    return [slow(rank, world, group, where) for where in ("compute", "side", "another")]


def slow(rank, world, group, where):
    model, optimizer, handle = attached(rank, "cuda", group, COURSES[1])
    side = torch.cuda.ExternalStream(handle._attachment.stream())

    def sleep(_):
        if where == "compute":
            torch.cuda._sleep(SLEEP)
        if where == "side":
            with torch.cuda.stream(side):
                torch.cuda._sleep(SLEEP)
        # Memory that goes back to the allocator at once must not be anybody's.
        for _ in range(4):
            torch.full((50_000,), float("nan"), device="cuda")

    stream = torch.cuda.Stream() if where == "another" else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        steps(model, optimizer, rank, range(STEPS), [(4, world - 1), (7, 0)], sleep)
        return remains(model, handle)


def test_slow_streams_change_nothing():
    usual = run(2, courses, "cpu", "gloo", COURSES[1:2])
    for _, backend in WAYS[1:]:
        other = run(2, stressed, backend, seconds=200)
        for i in range(3):
            expect_same([one[0] for one in usual], [one[i] for one in other], (backend, i))


def without_waits(rank, world):
    """torch itself raises where something makes the host wait for the device."""
    group = group_of("nccl", rank)
    for settings in COURSES[:2]:
        no_wait(rank, group, settings)


def no_wait(rank, group, settings):
    model, optimizer, handle = attached(rank, "cuda", group, settings, fused=True)
    given = [torch.randn_like(parameter) for parameter in model.parameters()]

    def step():
        optimizer.zero_grad()
        sum((parameter * one).sum() for parameter, one
            in zip(model.parameters(), given)).backward()
        optimizer.step()

    for _ in range(3):
        step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(6):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    handle.drain()


def test_steps_do_not_wait_for_the_device():
    run(1, without_waits)


def patient(rank, world):
    """Rank 1 stops for a while. Rank 0 takes D further steps and does not wait, nor does its
    device."""
    model, optimizer, handle = attached(rank, "cuda", None, {"scheme": "dense", "delay": 6})
    steps(model, optimizer, rank, range(8))
    torch.cuda.synchronize()
    handle._barrier.gather("pause", "")
    begin = time.monotonic()
    if rank == 1:
        time.sleep(2)
    steps(model, optimizer, rank, range(8, 13))
    torch.cuda.synchronize()
    if rank == 0:
        assert time.monotonic() - begin < 1.5
    steps(model, optimizer, rank, range(13, 16))
    handle.drain()
    assert same_everywhere(weights(model))


def test_never_waits_for_young_messages():
    run(2, patient)


# -- checkpoints, DDP, refusals


def saved(rank, world, device, backend):
    model, optimizer, handle = attached(rank, device, group_of(backend, rank), COURSES[1])
    steps(model, optimizer, rank, range(5))
    state = handle.state_dict()
    assert all(value.device.type == "cpu" for value in state["entries"].values()
               if isinstance(value, torch.Tensor))
    return state, model.cpu().state_dict(), optimizer.state_dict()


def loaded(rank, world, device, backend, checkpoints):
    # A copy: the optimizer works on the tensors that it loads, which all jobs share.
    state, model_state, optimizer_state = copy.deepcopy(checkpoints[rank])
    group = group_of(backend, rank)
    model = Fixed()
    model.load_state_dict(model_state)
    model.to(device)
    optimizer = sgd(model, momentum=0.5, weight_decay=2.0**-7)
    optimizer.load_state_dict(optimizer_state)
    handle = thinwire.attach(model, optimizer, process_group=group, check_every=3, **COURSES[1])
    handle.load_state_dict(state)
    steps(model, optimizer, rank, range(5, STEPS))
    return remains(model, handle)


def test_checkpoints_move_between_devices():
    from_cpu = run(2, saved, "cpu", "gloo")
    usual = run(2, loaded, "cpu", "gloo", from_cpu)
    expect_same(usual, run(2, loaded, "cuda", "nccl", from_cpu), "cpu to cuda")
    from_cuda = run(2, saved, "cuda", "gloo")
    expect_same(usual, run(2, loaded, "cpu", "gloo", from_cuda), "cuda to cpu")


def in_ddp(rank, world, backend):
    group = group_of(backend, rank)
    torch.manual_seed(rank)  # rank 0's weights count
    module = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64),
                                 torch.nn.ReLU(), torch.nn.Linear(64, 10)).cuda()
    ddp = DistributedDataParallel(module, device_ids=[0], process_group=group)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=3)
    handle = thinwire.attach(ddp, optimizer, scaler=scaler, delay=4, **DGC)
    generator = torch.Generator("cuda").manual_seed(rank)
    for step in range(12):
        optimizer.zero_grad()
        x = torch.randn(16, 20, device="cuda", generator=generator)
        with torch.autocast("cuda", torch.bfloat16):
            loss = ddp(x).float().square().mean()
        scaler.scale(loss * float("inf") if (step, rank) == (5, 1) else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    with handle.anchor():
        assert same_everywhere(weights(module))
        assert same_everywhere(module[1].running_mean.cpu())
    assert handle.report().skipped == (1 if rank == 1 else 0)
    handle.detach()
    assert same_everywhere(weights(module))
    for _ in range(3):
        optimizer.zero_grad()
        ddp(torch.randn(16, 20, device="cuda", generator=generator)).square().mean().backward()
        optimizer.step()
    assert same_everywhere(weights(module)) and torch.isfinite(weights(module)).all()


def test_ddp_with_a_scaler_and_back():
    for backend in ("gloo", "nccl"):
        run(2, in_ddp, backend, seconds=200)


def linked(rank, world):
    _connection.LINK = "1gbit,30ms"
    model, optimizer, handle = attached(rank, "cuda", None, {"scheme": "dense", "delay": 20})
    begin = time.monotonic()
    steps(model, optimizer, rank, range(20))
    torch.cuda.synchronize()
    fast = time.monotonic() - begin
    handle.drain()
    assert same_everywhere(weights(model))
    return fast


def test_messages_over_an_emulated_link():
    run(2, linked)


def refusals(rank, world):
    for settings, part in (({"scheme": "dense", "delay": "auto:9"}, "auto:9"),
                           ({"scheme": "atomo", "delay": 2}, "atomo")):
        model = Fixed().cuda()
        try:
            thinwire.attach(model, sgd(model), **settings)
        except (ValueError, RuntimeError) as error:
            assert part in str(error), error
        else:
            raise AssertionError(f"{settings} was not refused")


def test_refusals():
    run(1, refusals)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("test_cuda_delay: no GPU")
    chosen = [name for name in list(globals()) if name.startswith("test_")
              and callable(globals()[name]) and all(part in name for part in sys.argv[1:])]
    failed = []
    for name in chosen:
        begin = time.monotonic()
        try:
            globals()[name]()
            print(f"{name}: ok, {time.monotonic() - begin:.1f} s", flush=True)
        except AssertionError as error:
            failed.append(name)
            print(f"{name}: FAILED\n{str(error)[-3000:]}", flush=True)
    sys.exit(f"{len(failed)} of {len(chosen)} failed: {', '.join(failed)}" if failed else 0)
