"""test_simulate: N virtual workers give the bits of N processes with DDP and attach(): weights,
states and reports, in skipped steps and after a restart."""

# SPDX-License-Identifier: Apache-2.0
import contextlib
import copy
import dataclasses
import json
import pathlib
import pickle
import re

import pytest
import torch
import thinwire
import torch.distributed.checkpoint as dcp
from thinwire._state import shard_for
from workers import loss_of, net, run, sgd, train, weights, wrap

CAP = 0.004  # wrap()'s: several buckets even for a small model
STEPS, STOP = 9, 5

# Scheme, options of attach() and simulate(), options of SGD.
CASES = [
    ("dense", {}, {"weight_decay": 1e-3}),
    ("bf16", {}, {"nesterov": True}),
    ("topk:density=0.05", {}, {}),
    ("topk:density=0.05", {"exchange": "split"}, {"weight_decay": 1e-3}),
    ("dgc:density=0.05,warmup=4", {}, {"weight_decay": 1e-3}),
    ("dgc:density=0.05", {"exchange": "split"}, {"nesterov": True}),
    ("dgc:density=0.05,momentum=0", {}, {"momentum": 0}),
    ("onebit", {}, {}),
    ("powersgd", {"fuse_mb": 0.001}, {}),
    ("csc", {}, {"weight_decay": 1e-3, "nesterov": True}),
    ("signum", {}, {"lr": 0.002, "weight_decay": 1e-3}),
    ("terngrad", {}, {}),
    ("randomk", {}, {}),
    ("qsgd:memory=momentum", {}, {}),
]


@pytest.fixture(autouse=True)
def one_thread():
    """Sums in a backward depend on the number of threads; workers have one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def simulated(model, optimizer, world, scheme, **options):
    return thinwire.simulate(model, optimizer, world, scheme, bucket_cap_mb=CAP, **options)


def go(sim, model, optimizer, steps, poison=(), loss=loss_of):
    for step in steps:
        optimizer.zero_grad()
        for rank in range(sim.workers):
            with sim.worker(rank):
                value = loss(model, rank, step)
                (value * float("inf") if (step, rank) in poison else value).backward()
        optimizer.step()


def entries_of(shard):
    return {name: shard["entries"][name] for name in sorted(shard["entries"])}


def same(one, other, what):
    assert one.keys() == other.keys(), what
    for name, value in one.items():
        equal = torch.equal if isinstance(value, torch.Tensor) else (lambda a, b: a == b)
        assert equal(value, other[name]), f"{what}: {name}"


def counts_of(report):
    names = ("steps", "skipped", "payload_bytes", "dense_bytes", "sent_bytes", "collectives")
    return {name: getattr(report, name) for name in names}


def processes(rank, world, cases, poisoned):
    found = []
    for scheme, options, of_sgd in cases:
        model = net()
        ddp, optimizer = wrap(model), sgd(model, **of_sgd)
        handle = thinwire.attach(ddp, optimizer, scheme=scheme, **options)
        train(ddp, optimizer, rank, range(STOP), {poisoned})
        middle = (weights(model), copy.deepcopy(optimizer.state_dict()), handle.state_dict())
        train(ddp, optimizer, rank, range(STOP, STEPS))
        report = counts_of(handle.report())
        found.append((middle, weights(model), handle.state_dict(), report))
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_the_bits_of_processes(world):
    poisoned = (3, world - 1)
    wanted = run(world, processes, CASES, poisoned)
    for i, (scheme, options, of_sgd) in enumerate(CASES):
        what = f"{scheme} {options}"
        ranks = [wanted[rank][i] for rank in range(world)]
        model = net()
        optimizer = sgd(model, **of_sgd)
        sim = simulated(model, optimizer, world, scheme, **options)
        go(sim, model, optimizer, range(STOP), {poisoned})
        assert torch.equal(weights(model), ranks[0][0][0]), what
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), sim.state_dict()))
        go(sim, model, optimizer, range(STOP, STEPS))
        assert torch.equal(weights(model), ranks[0][1]), what
        for rank, shard in enumerate(sim.state_dict()["shards"]):
            same(entries_of(shard), entries_of(ranks[rank][2]), f"{what}, rank {rank}")
            assert shard["layout"] == ranks[rank][2]["layout"] and len(shard["layout"]) > 1
        report = counts_of(sim.report())
        for name in ("payload_bytes", "sent_bytes"):  # of all workers, the mean
            mean = sum(one[3][name] for one in ranks) / world
            assert abs(report.pop(name) - mean) <= 0.5, what
        same(report, {name: ranks[0][3][name] for name in report}, what)
        assert report["skipped"] == 1

        # Resumed from its own state, and from that of the processes.
        for states in (saved[2], thinwire.merge_states([one[0][2] for one in ranks])):
            model = net(seed=1)
            optimizer = sgd(model, **of_sgd)
            sim = simulated(model, optimizer, world, scheme, **options)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(copy.deepcopy(saved[1]))
            sim.load_state_dict(states)
            go(sim, model, optimizer, range(STOP, STEPS))
            assert torch.equal(weights(model), ranks[0][1]), f"{what}, resumed"


def large_buckets(rank, world, virtual):
    """Of a model of 40 MB in DDP's own sizes, in the first step and later."""
    model = torch.nn.Sequential(*[torch.nn.Linear(1000, 1000) for _ in range(10)])
    optimizer, found = sgd(model), []
    if virtual:
        handle, net = thinwire.simulate(model, optimizer, 1, "onebit"), model
    else:
        net = torch.nn.parallel.DistributedDataParallel(model)
        handle = thinwire.attach(net, optimizer, scheme="onebit")
    for _ in range(2):
        optimizer.zero_grad()
        with handle.worker(0) if virtual else contextlib.nullcontext():
            net(torch.ones(1, 1000)).sum().backward()
        optimizer.step()
        state = handle.state_dict()
        found.append(state["shards"][0]["layout"] if virtual else state["layout"])
    return found


def test_buckets_have_the_sizes_of_ddp():
    wanted = run(1, large_buckets, False)[0]
    assert large_buckets(0, 1, True) == wanted
    assert [len(layout) for layout in wanted] == [1, 3]


# -- shares


def test_a_batch_is_cut_into_equal_parts():
    model = net()
    sim = thinwire.simulate(model, sgd(model), 3, "dense")
    x, y = torch.randn(8, 20), torch.arange(8)
    parts = [part for _, part in sim.shares((x, {"y": [y], "none": None}))]
    assert [len(part[0]) for part in parts] == [2, 3, 3]
    assert torch.equal(torch.cat([part[0] for part in parts]), x)
    assert torch.equal(torch.cat([part[1]["y"][0] for part in parts]), y)
    assert [part for _, part in sim.shares("a", "b", "c")] == ["a", "b", "c"]
    for batch, error, text in [
        ((x[:2], y[:2]), ValueError, "2 rows for 3 workers"),
        ((x, y[:5]), ValueError, "tensors of 5 and 8 rows"),
        ({"text": ["a"] * 8}, TypeError, r"\['text'\]\[0\] is a str"),
        ((x, torch.tensor(1.0)), TypeError, r"the batch\[1\] is a Tensor"),
    ]:
        with pytest.raises(error, match=text):
            sim.shares(batch)
    with pytest.raises(ValueError, match="got 2"):
        sim.shares(x, y)


def test_an_ordinary_loop_with_a_data_loader():
    x, y = torch.randn(64, 20), torch.randint(0, 10, (64,))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 16)
    told = []
    one, two = net(), net()
    for model, whole in ((one, True), (two, False)):
        optimizer = sgd(model)
        sim = thinwire.simulate(
            model, optimizer, 4, "dgc", density=0.1, callback=told.append, link="100mbit,1ms"
        )
        for step, batch in enumerate(loader):
            optimizer.zero_grad()
            given = [batch] if whole else [(x[16 * step + 4 * i:][:4], y[16 * step + 4 * i:][:4])
                                           for i in range(4)]
            for _, (inputs, labels) in sim.shares(*given):
                torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    assert torch.equal(weights(one), weights(two))
    assert [report.step for report in told] == 2 * [1, 2, 3, 4]
    report = sim.report()
    assert report.steps == 4 and report.workers == 4 and report.ratio > 5
    assert report.compute_seconds > 0
    assert report.step_seconds() == report.step_seconds("100mbit,1ms") > 2e-3
    assert report.step_seconds("10mbit,1ms") > report.step_seconds()
    assert "4 virtual workers" in str(report) and "estimated step over 100mbit" in str(report)
    assert copy.deepcopy(report) == report and repr(sim).count("dgc:") == 1


def test_an_estimate_is_compute_coding_and_the_collectives():
    for scheme, options in (("dense", {}), ("onebit", {}), ("topk", {"exchange": "split"})):
        model = net()
        optimizer = sgd(model)
        sim = thinwire.simulate(model, optimizer, 3, scheme, **options)
        with pytest.raises(ValueError, match="no steps"):
            sim.report().step_seconds("1mbit")
        go(sim, model, optimizer, range(3))
        report = sim.report()
        here = report.compute_seconds + (report.encode_seconds + report.decode_seconds) / 3
        assert report.step_seconds("inf,0us") == pytest.approx(here)
        sent = report.sent_bytes / report.steps / 1e6 * 8  # in seconds at a megabit
        assert sent < report.step_seconds("1mbit,0us") - here < 1.5 * sent + 0.01
        with pytest.raises(ValueError, match="which link"):
            report.step_seconds()


def fresh(scheme="dgc:density=0.1", world=2, **options):
    model = net()
    optimizer = sgd(model, **options.pop("of_sgd", {}))
    return model, optimizer, thinwire.simulate(model, optimizer, world, scheme, **options)


def expected_after(steps, **options):
    model, optimizer, sim = fresh(**options)
    go(sim, model, optimizer, steps)
    return weights(model)


def test_a_report_is_plain_values():
    model, optimizer, sim = fresh(link="100mbit,1ms")
    assert pickle.loads(pickle.dumps(sim.report())) == sim.report()
    go(sim, model, optimizer, range(2))
    report = sim.report()
    values = json.loads(json.dumps(dataclasses.asdict(report)))
    assert values["workers"] == 2 and values["link"] == "100mbit,1ms" and "_over" not in values
    for same_one in (copy.copy(report), copy.deepcopy(report)):
        assert same_one == report
        assert same_one.step_seconds("1mbit") == report.step_seconds("1mbit")
    read = pickle.loads(pickle.dumps(report))
    read = pickle.loads(pickle.dumps(read))
    assert read == report and str(read) == str(report)
    assert read.step_seconds() == report.step_seconds()
    with pytest.raises(ValueError, match="no longer knows its collectives over 1mbit"):
        read.step_seconds("1mbit")
    assert "estimated" not in str(dataclasses.replace(report, workers=3))


def sums_of(state, ending):
    """Over the workers, by parameter."""
    found = {}
    for shard in state["shards"]:
        for name, value in shard["entries"].items():
            if name.endswith(ending):
                found[name] = found.get(name, 0) + value
    return found


def test_another_number_of_workers():
    model, optimizer, sim = fresh("topk:density=0.05,values=f32", world=3)
    go(sim, model, optimizer, range(3))
    one = sim.state_dict()["shards"]
    sim.detach()
    two = thinwire.simulate(model, optimizer, 2, "topk:density=0.05,values=f32")
    two.load_state_dict(thinwire.merge_states(one))
    before, after = sums_of({"shards": one}, "/v"), sums_of(two.state_dict(), "/v")
    assert len(before) == 6 and all(value.any() for value in before.values())
    for name, value in before.items():
        torch.testing.assert_close(after[name], value)
    go(two, model, optimizer, range(3, 5))
    assert two.step_report.step == 5


def momentum_from(rank, world, state):
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    thinwire.attach(ddp, optimizer, scheme="topk").load_state_dict(state)
    return [optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()]


@pytest.mark.parametrize("before, now", [(2, 3), (3, 2)])
def test_signums_momentum_with_another_number_of_workers(before, now):
    """Each worker has a mean of its own. Those that are there are averaged."""
    model, optimizer, sim = fresh("signum", world=before, of_sgd={"lr": 0.002})
    go(sim, model, optimizer, range(3))
    state = sim.state_dict()
    left = {"shards": state["shards"][:now]}
    wanted = {name[:-2]: value / 0.1 / min(before, now)
              for name, value in sums_of(left, "/m").items()}
    sim.detach()
    model, optimizer, sim = fresh("topk", world=now)
    sim.load_state_dict(state)
    buffers = [optimizer.state[one]["momentum_buffer"] for one in model.parameters()]
    for (name, _), buffer in zip(model.named_parameters(), buffers):
        torch.testing.assert_close(buffer.reshape(-1), wanted[name], rtol=1e-4, atol=1e-7)
    for found in run(now, momentum_from, state):
        for one, other in zip(found, buffers):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
    go(sim, model, optimizer, range(3, 5))
    model, optimizer, sim = fresh("signum", world=now, of_sgd={"lr": 0.002})
    sim.load_state_dict(state)
    go(sim, model, optimizer, range(3, 5))


def test_a_state_that_is_resharded_twice_knows_its_first_workers():
    model, optimizer, sim = fresh("signum", world=4, of_sgd={"lr": 0.002})
    go(sim, model, optimizer, range(2))
    state = sim.state_dict()
    for world in (3, 2):
        state = thinwire.merge_states([shard_for(state, rank, world) for rank in range(world)])
    assert [shard["before"] for shard in state["shards"]] == [4, 4]


def test_a_distributed_checkpoint_of_one_process(tmp_path):
    model, optimizer, sim = fresh()
    go(sim, model, optimizer, range(3))
    dcp.save({"thinwire": sim}, checkpoint_id=tmp_path)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    model, optimizer, sim = fresh()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    thinwire.load_checkpoint(sim, tmp_path)
    go(sim, model, optimizer, range(3, 6))
    assert torch.equal(weights(model), expected_after(range(6)))


def test_the_how_to_runs(capsys):
    page = pathlib.Path(__file__).parents[2] / "docs" / "howto" / "will_it_hurt.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
    assert len(blocks) == 2
    names = {}
    for block in blocks:
        exec(block.replace("steps=200", "steps=4"), names)
    text = capsys.readouterr().out
    assert "16 steps, 0 skipped; 8 virtual workers" in text and "\nTake " in text
