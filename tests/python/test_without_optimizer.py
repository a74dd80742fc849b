"""test_without_optimizer: attach(model, None): everything that the first log line promises,
without the optimizer."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import thinwire
from workers import loss_of, net, run, same_everywhere, train, weights, wrap


def attached(form, ddp, model, **options):
    if form == "attach":
        return thinwire.attach(ddp, None, **options)
    state = thinwire.HookState(model=model if form == "plain" else None, **options)
    ddp.register_comm_hook(state, thinwire.hook)
    return state


def promises(rank, world, form):
    model = net()
    ddp, optimizer = wrap(model), torch.optim.Adam(model.parameters())
    handle = attached(form, ddp, model, scheme="topk:density=0.1", check_every=4)
    handle.schedule({3: "int8"})
    for step in range(3):
        assert handle.scheme.startswith("topk")
        train(ddp, optimizer, rank, [step])
    assert handle.scheme.startswith("int8")
    with torch.no_grad():
        model[2].bias[3] += rank
    if form == "nameless":  # no model, no names: nothing to compare
        return
    with pytest.raises(RuntimeError, match="2.bias"):
        train(ddp, optimizer, rank, [3])


def void_steps(rank, world, form):
    for options in ({}, {"gradient_as_bucket_view": True}):
        model = net()
        ddp, optimizer = wrap(model, **options), torch.optim.Adam(model.parameters())
        handle = attached(form, ddp, model, scheme="topk:density=0.1")
        train(ddp, optimizer, rank, range(3))
        before, moments = weights(model), optimizer.state[model[0].weight]["exp_avg"].clone()
        train(ddp, optimizer, rank, [3], poison={(3, 1)})
        assert handle.report().skipped == 1
        assert torch.equal(before, weights(model)), "Adam has moved on a void step"
        assert torch.equal(moments, optimizer.state[model[0].weight]["exp_avg"])
        train(ddp, optimizer, rank, range(4, 7))
        assert not torch.equal(before, weights(model)) and same_everywhere(weights(model))
        assert torch.isfinite(loss_of(ddp, rank, 0))


@pytest.mark.parametrize("form", ["attach", "plain", "nameless"])
@pytest.mark.parametrize("case", [promises, void_steps])
def test_without_an_optimizer(case, form):
    run(2, case, form)
