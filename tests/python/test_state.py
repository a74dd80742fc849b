"""test_state: checkpoints of another number of workers, and of a model whose parameters were frozen
or added."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.distributed as dist
import thinwire
from workers import net, run, same_everywhere, sgd, train, weights, wrap

SCHEME = "dgc:density=0.05"


def saves(rank, world):
    model = net()
    ddp, optimizer = wrap(model), sgd(model, weight_decay=0.01)
    handle = thinwire.attach(ddp, optimizer, scheme=SCHEME)
    train(ddp, optimizer, rank, range(5))
    whole = handle.full_state_dict()
    assert (whole is not None) == (rank == 0)
    return model.state_dict(), optimizer.state_dict(), handle.state_dict(), whole


def sums(entries_of_ranks):
    names = [name for name in entries_of_ranks[0] if name.endswith(("/u", "/v"))]
    return {name: sum(entries[name] for entries in entries_of_ranks) for name in names}


def loads(rank, world, model_state, optimizer_state, whole):
    model = net()
    model.load_state_dict(model_state)
    ddp, optimizer = wrap(model), sgd(model, weight_decay=0.01)
    optimizer.load_state_dict(optimizer_state)
    handle = thinwire.attach(ddp, optimizer, scheme=SCHEME)
    handle.load_state_dict(whole)
    before = handle.state_dict()["entries"]
    if world != whole["world"]:
        with pytest.raises(ValueError, match="merge_states"):
            handle.load_state_dict(whole["shards"][0])
    train(ddp, optimizer, rank, range(5, 9))
    assert same_everywhere(weights(model))
    assert set(handle.state_dict()["entries"]) >= {
        name for name in before if name.endswith(("/u", "/v"))
    }
    return before


@pytest.mark.parametrize("old,new", [(4, 2), (2, 4), (3, 2)])
def test_residuals_keep_their_sum(old, new):
    results = run(old, saves)
    model_state, optimizer_state, _, whole = results[0]
    merged = thinwire.merge_states([shard for _, _, shard, _ in reversed(results)])
    assert (
        [shard["rank"] for shard in merged["shards"]]
        == list(range(old))
        == [shard["rank"] for shard in whole["shards"]]
    )
    expected = sums([shard["entries"] for _, _, shard, _ in results])
    found = sums(run(new, loads, model_state, optimizer_state, merged))
    assert expected.keys() == found.keys() and any(
        value.abs().sum() > 0 for value in expected.values()
    )
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_an_incomplete_set_of_states_is_refused():
    shards = [shard for _, _, shard, _ in run(2, saves)]
    with pytest.raises(ValueError, match=r"ranks \[0\]"):
        thinwire.merge_states(shards[:1])
    with pytest.raises(ValueError, match=r"ranks \[1, 1\]"):
        thinwire.merge_states([shards[1], shards[1]])
    with pytest.raises(ValueError, match="different steps"):
        thinwire.merge_states([shards[0], {**shards[1], "steps": 3}])
    with pytest.raises(ValueError, match="none"):
        thinwire.merge_states([])


def frozen(rank, world):
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme=SCHEME)
    train(ddp, optimizer, rank, range(5))
    state, saved = model.state_dict(), handle.state_dict()

    model = net()  # the first layer is frozen now, and there is a new one
    model.load_state_dict(state)
    model[0].requires_grad_(False)
    model.append(torch.nn.ReLU())
    model.append(torch.nn.Linear(10, 10))
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme=SCHEME)
    handle.load_state_dict(saved)
    first = weights(model[0])
    loaded = handle.state_dict()["entries"]
    train(ddp, optimizer, rank, range(5, 9))
    entries = handle.state_dict()["entries"]
    assert "0.weight/v" not in entries and "6.weight/v" in entries
    assert torch.equal(loaded["2.weight/v"], saved["entries"]["2.weight/v"])
    assert torch.equal(first, weights(model[0])) and same_everywhere(weights(model))


def test_parameters_frozen_or_added_between_runs():
    run(2, frozen)
