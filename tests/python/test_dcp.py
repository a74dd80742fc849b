"""test_dcp: torch.distributed.checkpoint saves what every rank holds, and loads it with the same or
another number of ranks."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.distributed.checkpoint as dcp
import thinwire
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from workers import Job, net, run, same_everywhere, sgd, train, weights, wrap

SCHEME = "dgc:density=0.05"


class App:
    """A user's own object that holds the handle."""

    def __init__(self, handle):
        self.handle = handle

    def state_dict(self):
        return {"inner": self.handle.state_dict()}

    def load_state_dict(self, state):
        self.handle.load_state_dict(state["inner"])


def start(form="attach"):
    model = net()
    ddp, optimizer = wrap(model), sgd(model, weight_decay=0.01)
    if form == "plain":
        handle = thinwire.HookState(SCHEME, model=model, optimizer=optimizer)
        ddp.register_comm_hook(handle, thinwire.hook)
    else:
        handle = thinwire.attach(ddp, optimizer, scheme=SCHEME)
    return model, ddp, optimizer, handle


def held(handle, form):
    return {"app": App(handle)} if form == "nested" else {"handle": handle}


def save(folder, ddp, optimizer, handle, form):
    model_state, optimizer_state = get_state_dict(ddp, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, **held(handle, form)}
    if form == "async":
        dcp.async_save(state, checkpoint_id=folder).result()
    else:
        dcp.save(state, checkpoint_id=folder)


def load(folder, ddp, optimizer, handle=None, form="attach"):
    model_state, optimizer_state = get_state_dict(ddp, optimizer)
    state = {
        "model": model_state,
        "optimizer": optimizer_state,
        **(held(handle, form) if handle is not None else {}),
    }
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        ddp, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )


def resumes(rank, world, folder, form):
    model, ddp, optimizer, handle = start(form)
    train(ddp, optimizer, rank, range(5))
    save(folder, ddp, optimizer, handle, form)
    train(ddp, optimizer, rank, range(5, 8))
    again, ddp, optimizer, handle = start(form)
    load(folder, ddp, optimizer, handle, form)
    train(ddp, optimizer, rank, range(5, 8))
    assert torch.equal(weights(model), weights(again)) and handle.state_dict()["steps"] == 8
    # once more, into a handle that has taken steps
    load(folder, ddp, optimizer, handle, form)
    train(ddp, optimizer, rank, range(5, 8))
    assert torch.equal(weights(model), weights(again))


@pytest.mark.parametrize("form", ["attach", "plain", "nested", "async"])
def test_a_run_goes_on_with_the_same_bits(tmp_path, form):
    run(2, resumes, str(tmp_path / "run"), form)


def residuals(handle):
    return {
        name: value
        for name, value in handle.state_dict()["entries"].items()
        if name.endswith(("/u", "/v"))
    }


def saves(rank, world, folder, form):
    model, ddp, optimizer, handle = start()
    train(ddp, optimizer, rank, range(5))
    save(folder, ddp, optimizer, handle, form)
    return residuals(handle)


def reshards(rank, world, folder, form):
    model, ddp, optimizer, handle = start()
    load(folder, ddp, optimizer)
    thinwire.load_checkpoint(handle, folder)
    found = residuals(handle)
    train(ddp, optimizer, rank, range(5, 8))
    assert same_everywhere(weights(model)) and handle.step_report.step == 8
    return found


@pytest.mark.parametrize(
    "old,new,form", [(2, 4, "attach"), (4, 2, "nested"), (3, 2, "async"), (2, 2, "attach")]
)
def test_another_number_of_ranks(tmp_path, old, new, form):
    folder = str(tmp_path / "run")
    expected, found = run(old, saves, folder, form), run(new, reshards, folder, form)
    assert any(value.abs().sum() > 0 for value in expected[1].values())
    for name in expected[0]:
        torch.testing.assert_close(
            sum(part[name] for part in found), sum(part[name] for part in expected)
        )


def loads_plainly(rank, world, folder):
    model, ddp, optimizer, handle = start()
    dcp.load({"handle": handle}, checkpoint_id=folder)


@pytest.mark.parametrize("old,new", [(2, 3), (3, 2)])
def test_a_plain_load_with_another_number_is_an_error_on_all_ranks(tmp_path, old, new):
    folder = str(tmp_path / "run")
    run(old, saves, folder, "attach")
    for outcome in Job(new, loads_plainly, folder).outcomes(60):
        assert outcome and not outcome[0] and f"_of_{new}" in outcome[1], outcome


def saves_the_dictionary(rank, world, folder):
    """Saves the state instead of the handle: DCP keeps only one rank's, and loading
    it is an error."""
    model, ddp, optimizer, handle = start()
    train(ddp, optimizer, rank, range(5))
    dcp.save({"handle": handle.state_dict()}, checkpoint_id=folder)
    model, ddp, optimizer, handle = start()
    state = {"handle": handle.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    with pytest.raises(ValueError, match="handle itself|this is the state of rank"):
        handle.load_state_dict(state["handle"])
    with pytest.raises(ValueError, match="load_checkpoint"):
        thinwire.load_checkpoint(handle, folder)


def test_a_state_that_dcp_has_thinned_out_is_refused_on_all_ranks(tmp_path):
    run(2, saves_the_dictionary, str(tmp_path / "run"))


def two_handles(rank, world, folder):
    handles = [start()[1:] for _ in range(2)]
    for number, (ddp, optimizer, handle) in enumerate(handles):
        train(ddp, optimizer, rank, range(3 + number))
    dcp.save({"first": handles[0][2], "second": handles[1][2]}, checkpoint_id=folder)
    fresh = start()[3]
    with pytest.raises(ValueError, match=r"\['first', 'second'\]"):
        thinwire.load_checkpoint(fresh, folder)
    thinwire.load_checkpoint(fresh, folder, key="second")
    assert fresh.state_dict()["steps"] == 4


def test_two_handles_in_one_checkpoint(tmp_path):
    run(2, two_handles, str(tmp_path / "run"))


def asked_early(rank, world, form):
    """get_state_dict() makes a stateless optimizer take a step with zeros, which must
    have no effect."""
    results = []
    for asks in (False, True):
        model, ddp, optimizer, handle = start(form)
        for step in range(6):
            if asks and step in (0, 3):
                optimizer.zero_grad()
                get_state_dict(ddp, optimizer)
            train(ddp, optimizer, rank, [step], poison={(2, 1)})
        results.append(weights(model))
        assert handle.report().steps == 6
    assert torch.equal(*results)


@pytest.mark.parametrize("form", ["attach", "plain"])
def test_asking_for_the_optimizers_state_changes_nothing(form):
    run(2, asked_early, form)


def delayed(rank, world, folder):
    def fresh():
        model = net()
        optimizer = sgd(model, momentum=0)
        return (
            model,
            optimizer,
            thinwire.attach(model, optimizer, scheme="dgc:density=0.1", delay=2),
        )

    model, optimizer, handle = fresh()
    train(model, optimizer, rank, range(5))
    dcp.save({"handle": handle}, checkpoint_id=folder)
    train(model, optimizer, rank, range(5, 9))
    again, optimizer, handle = fresh()
    dcp.load({"handle": handle}, checkpoint_id=folder)
    train(again, optimizer, rank, range(5, 9))
    assert torch.equal(weights(model), weights(again))


def test_a_delayed_handle_goes_on_with_the_same_bits(tmp_path):
    run(2, delayed, str(tmp_path / "run"))
