"""test_resume: a resumed handle continues its step count and its schedule, and rejects ranks
that are at another step."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import thinwire
from workers import Job, net, run, same_everywhere, sgd, train, weights, wrap

PLAN = {2: "dgc:density=0.2", 4: {"density": 0.05}, 8: "topk:density=0.1"}


def start(**options):
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    return model, ddp, optimizer, thinwire.attach(ddp, optimizer, scheme="dense", **options)


def scheduled(rank, world, order):
    """Saved between two changes: the resumed run is bit-identical to an uninterrupted one."""
    model, ddp, optimizer, handle = start()
    handle.schedule(PLAN)
    train(ddp, optimizer, rank, range(6))
    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "handle": handle.state_dict(),
    }
    saved = {key: torch.load(_file(value), weights_only=True) for key, value in saved.items()}
    schemes = []
    handle.on_step(lambda report: schemes.append((report.step, handle.scheme)))
    train(ddp, optimizer, rank, range(6, 12))

    resumed_model, resumed_ddp, resumed_optimizer, resumed = start()
    heard = []
    resumed.on_step(lambda report: heard.append((report.step, resumed.scheme)))
    resumed_model.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    if order == "schedule first":
        resumed.schedule(PLAN)
    resumed.load_state_dict(saved["handle"])
    if order == "load first":
        resumed.schedule(PLAN)
    train(resumed_ddp, resumed_optimizer, rank, range(6, 12))
    assert heard == schemes and heard[0][0] == 7, (heard, schemes)
    assert torch.equal(weights(model), weights(resumed_model))
    assert resumed.state_dict()["steps"] == 12 and resumed.step_report.step == 12


def _file(value):
    import io

    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("order", ["schedule first", "load first"])
def test_a_resumed_schedule_goes_on(order):
    run(2, scheduled, order)


def logs_go_on(rank, world):
    class Writer:
        def __init__(self):
            self.steps = []

        def add_scalar(self, tag, value, step):
            self.steps.append(step)

    writer = Writer()
    model, ddp, optimizer, handle = start()
    train(ddp, optimizer, rank, range(5))
    saved = handle.state_dict()
    model, ddp, optimizer, handle = start()
    handle.load_state_dict(saved)
    handle.log_to(writer, every=3)
    train(ddp, optimizer, rank, range(5))
    handle.load_state_dict(saved)  # once more, from later to earlier
    train(ddp, optimizer, rank, range(2))
    assert sorted(set(writer.steps)) == [6, 9] and handle.state_dict()["steps"] == 7


def test_logs_go_on_where_they_were():
    run(2, logs_go_on)


def different(rank, world, scheme, everyone):
    model = net()
    ddp, optimizer = wrap(model), sgd(model, momentum=0)
    handle = thinwire.attach(ddp, optimizer, scheme=scheme, timeout=20)
    states = []
    for step in range(5):
        train(ddp, optimizer, rank, [step])
        states.append(handle.state_dict())
    model = net()
    ddp, optimizer = wrap(model), sgd(model, momentum=0)
    handle = thinwire.attach(ddp, optimizer, scheme=scheme, timeout=20)
    if everyone:
        handle.load_state_dict(states[3 + rank])
    elif rank == 1:
        handle.load_state_dict(states[3])
    train(ddp, optimizer, rank, range(2))


@pytest.mark.parametrize("everyone", [True, False], ids=["all_load", "one_loads"])
@pytest.mark.parametrize(
    "scheme",
    [
        "dense",
        "randomk:density=0.1",
        "csc:density=0.1,select=previous,momentum=0",
        "dgc:density=0.1,momentum=0",
    ],
)
def test_states_of_different_steps_are_an_error_on_all_ranks(scheme, everyone):
    for outcome in Job(2, different, scheme, everyone).outcomes(60):
        assert outcome and not outcome[0], outcome
        expected = (
            ("after 4 steps", "after 5 steps") if everyone else ("after 0 steps", "after 4 steps")
        )
        assert all(part in outcome[1] for part in expected), outcome[1]


def midway(rank, world, scheme):
    """Only one rank returns to an earlier state."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model, momentum=0)
    handle = thinwire.attach(ddp, optimizer, scheme=scheme, timeout=5)
    train(ddp, optimizer, rank, range(3))
    saved = handle.state_dict()
    train(ddp, optimizer, rank, range(3, 5))
    if rank == 1:
        handle.load_state_dict(saved)
    train(ddp, optimizer, rank, range(5, 7))
    return same_everywhere(weights(model))


@pytest.mark.parametrize("scheme", ["randomk:density=0.1", "dgc:density=0.1,momentum=0"])
def test_one_rank_that_loads_alone_in_mid_run_is_an_error(scheme):
    outcomes = Job(2, midway, scheme).outcomes(60)
    assert all(outcome and not outcome[0] for outcome in outcomes), outcomes


def mistaken(rank, world):
    """A schedule with a mistake is rejected as a whole, and so is a state that does not match."""
    model, ddp, optimizer, handle = start()
    with pytest.raises(RuntimeError, match="desnity"):
        handle.schedule({2: "topk", 4: {"desnity": 0.1}})
    train(ddp, optimizer, rank, range(3))
    assert handle.scheme == "dense"
    saved = handle.state_dict()
    with pytest.raises(ValueError, match="got none"):
        handle.load_state_dict({**saved, "entries": {}})
    train(ddp, optimizer, rank, range(3, 5))
    assert handle.step_report.step == 5


def test_mistakes_change_nothing():
    run(2, mistaken)
