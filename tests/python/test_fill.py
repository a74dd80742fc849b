"""test_fill: gradients on a device are copied into DDP's buckets a whole bucket at a time. Nobody
can tell by the values, whatever looks at .grad."""

# SPDX-License-Identifier: Apache-2.0
import gc

import pytest
import torch
import thinwire
from thinwire import _connection, _handle
from workers import loss_of, net, run, sgd, train, weights, wrap

COPIES = ("torch::distributed::reducer::copy_", "aten::_foreach_copy_")


def course(rank, world, fill, scheme, options):
    _connection.STREAMS, _handle.FILL = True, fill
    model = net()
    names = dict(model.named_parameters())
    seen = []
    see = lambda parameter: seen.append(parameter.grad.nan_to_num())  # noqa: E731
    # Two that may look: a hook of the parameter, and one behind its accumulation.
    names["2.bias"].register_post_accumulate_grad_hook(see)
    late = names["4.bias"]
    node = late.expand_as(late).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: see(late))
    options = {"gradient_as_bucket_view": True, **options}
    ddp, optimizer = wrap(model, **options), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme=scheme)
    train(ddp, optimizer, rank, range(4), [(2, 1)])
    for step in range(4, 8):  # gradients that are there are added to
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        with ddp.no_sync():
            loss_of(ddp, rank, 100 + step).backward()
        loss_of(ddp, rank, step).backward()
        optimizer.step()
    optimizer.zero_grad()
    loss = loss_of(ddp, rank, 8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss.backward()
    optimizer.step()
    counts = [sum(event.name == name for event in profile.events()) for name in COPIES]
    handle.detach()
    del ddp, handle
    gc.collect()
    again = wrap(model, **options)
    thinwire.attach(again, optimizer, scheme=scheme)
    train(again, optimizer, rank, range(9, 12))
    return weights(model), seen, [parameter.grad for parameter in model.parameters()], counts


@pytest.mark.parametrize("scheme, options", [
    ("dense", {"find_unused_parameters": True}), ("dgc:density=0.05", {}),
    ("topk:density=0.05", {"gradient_as_bucket_view": False}), ("dense", {"static_graph": True})])
def test_nobody_can_tell(scheme, options):
    usual, filled = run(2, course, False, scheme, options), run(2, course, True, scheme, options)
    for (w, seen, grads, counts), (w2, seen2, grads2, counts2) in zip(usual, filled):
        assert torch.equal(w, w2)
        assert len(seen) == len(seen2) > 0 and all(map(torch.equal, seen, seen2))
        assert all(map(torch.equal, grads, grads2))
        assert counts == [6, 0]
        # Those that others look at are left to DDP, and all of a static graph.
        left = options.get("static_graph") or options.get("gradient_as_bucket_view") is False
        assert counts2 == [6, 0] if left else counts2[0] == 2 and 0 < counts2[1] <= 4


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(20, 30), torch.nn.Linear(20, 10)
        self.last = torch.nn.Linear(30, 10)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def incomplete(rank, world, fill):
    """DDP was not told of unused parameters, so some buckets are never complete."""
    _connection.STREAMS, _handle.FILL = True, fill
    model = Part()
    ddp, optimizer = wrap(model, gradient_as_bucket_view=True, bucket_cap_mb=1), sgd(model)
    thinwire.attach(ddp, optimizer, scheme="topk", density=0.1)
    torch.manual_seed(rank)
    ddp(torch.randn(8, 20)).square().mean().backward()
    found = [torch.zeros(1) if one.grad is None else one.grad.clone() for one in ddp.parameters()]
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        ddp(torch.randn(8, 20))
    return found


def test_gradients_of_an_incomplete_bucket_are_in_place():
    for found, found2 in zip(run(2, incomplete, False), run(2, incomplete, True)):
        assert all(map(torch.equal, found, found2))


def failed(rank, world):
    """A backward that raises leaves nothing behind for the next one."""
    _connection.STREAMS = True
    model = net()
    ddp, optimizer = wrap(model, gradient_as_bucket_view=True, bucket_cap_mb=1), sgd(model)
    thinwire.attach(ddp, optimizer, scheme="dense")
    angry = [True]

    def refuse(gradient):
        if angry[0]:
            raise ValueError("enough")

    model[0].bias.register_hook(refuse)
    with pytest.raises(ValueError, match="enough"):
        loss_of(ddp, rank, 0).backward()
    angry[0] = False
    optimizer.zero_grad()
    ddp.reducer._reset_state()
    train(ddp, optimizer, rank, range(3))
    other = net()
    plain, optimizer = wrap(other, gradient_as_bucket_view=True), sgd(other)
    train(plain, optimizer, rank, range(3))
    return weights(model), weights(other)


def test_a_failed_backward_leaves_nothing():
    for ours, plain in run(2, failed):
        assert torch.equal(ours, plain)
