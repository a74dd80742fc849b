"""test_dense: with `dense`, results are bit-identical to plain DDP."""
# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import thinwire
from workers import run, sgd, train, weights, wrap, net


def both(rank, world, ddp_options):
    result = []
    for attached in (False, True):
        model = net()
        ddp, optimizer = wrap(model, **ddp_options), sgd(model, weight_decay=0.01, nesterov=True)
        handle = thinwire.attach(ddp, optimizer, scheme="dense") if attached else None
        train(ddp, optimizer, rank, range(50))
        result.append(weights(model))
    assert handle.report().steps == 50 and handle.report().skipped == 0
    assert len(handle.state_dict()["layout"]) > 1
    return result


@pytest.mark.parametrize("world", [2, 3, 4])
def test_fifty_steps_are_those_of_plain_ddp(world):
    for plain, attached in run(world, both, {}):
        assert torch.equal(plain, attached)


def test_views_of_buckets_too():
    for plain, attached in run(2, both, {"gradient_as_bucket_view": True}):
        assert torch.equal(plain, attached)
