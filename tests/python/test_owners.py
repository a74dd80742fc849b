"""test_owners: under exchange="split" owners of stripes keep residuals of averages. They survive
a change of scheme, of exchange or of the number of workers: once everything is sent, the weights
have moved by all gradients."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.distributed as dist
import thinwire
from thinwire._state import shard_for
from workers import run, wrap

SPLIT = "topk:density=0.1,values=f32"
ALL = "topk:density=1,values=f32"  # sends the whole residual


def model_of_zeros():
    model = torch.nn.Sequential(torch.nn.Linear(16, 9), torch.nn.Linear(40, 10))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def gradients(model, rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    return [torch.randn(parameter.shape, generator=generator) for parameter in model.parameters()]


class Plain(torch.nn.Module):
    """A loss whose gradients are the numbers that it is given."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, numbers):
        pairs = zip(self.model.parameters(), numbers)
        return sum((parameter * number).sum() for parameter, number in pairs)


def take_step(ddp, optimizer, numbers):
    optimizer.zero_grad()
    ddp(numbers).backward()
    optimizer.step()


def trained(rank):
    model = model_of_zeros()
    ddp = wrap(Plain(model), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    handle = thinwire.attach(ddp, optimizer, scheme=SPLIT, exchange="split")
    for step in range(4):
        take_step(ddp, optimizer, gradients(model, rank, step))
    return model, ddp, optimizer, handle


def lacking(model, world):
    """What the weights still lack of the mean gradients of all four steps."""
    given = [gradients(model, rank, step) for rank in range(world) for step in range(4)]
    means = [sum(numbers) / world for numbers in zip(*given)]
    pairs = zip(model.parameters(), means)
    return max(float((parameter.detach() + mean).abs().max()) for parameter, mean in pairs)


def changes_scheme(rank, world, scheme):
    model, ddp, optimizer, handle = trained(rank)
    assert any("/owner/v" in name for name in handle.state_dict()["entries"])
    handle.set_scheme(scheme)
    for _ in range(3):
        take_step(ddp, optimizer, [torch.zeros_like(parameter) for parameter in model.parameters()])
    return lacking(model, world)


@pytest.mark.parametrize("scheme", [ALL, ALL + ",feedback=off"])
def test_a_change_of_scheme_keeps_owners_residuals(scheme):
    assert max(run(3, changes_scheme, scheme)) < 1e-4


def changes_exchange(rank, world, scheme):
    old, _, _, handle = trained(rank)
    saved = handle.state_dict()
    model = model_of_zeros()
    model.load_state_dict(old.state_dict())
    ddp, optimizer = wrap(Plain(model)), torch.optim.SGD(model.parameters(), lr=1.0)
    handle = thinwire.attach(ddp, optimizer, scheme=scheme)
    handle.load_state_dict(saved)
    for _ in range(2):
        take_step(ddp, optimizer, [torch.zeros_like(parameter) for parameter in model.parameters()])
    return lacking(model, world)


@pytest.mark.parametrize("scheme", [ALL, "dense", ALL + ",feedback=off"])
def test_a_change_of_exchange_keeps_owners_residuals(scheme):
    assert max(run(3, changes_exchange, scheme)) < 1e-4


def conv_of_zeros(memory_format):
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 9, 3), torch.nn.Conv2d(3, 5, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model.to(memory_format=memory_format)


def changes_format(rank, world, formats, exchange):
    old = conv_of_zeros(formats[0])
    ddp, optimizer = wrap(Plain(old)), torch.optim.SGD(old.parameters(), lr=1.0)
    handle = thinwire.attach(ddp, optimizer, scheme=SPLIT, exchange="split")
    for step in range(4):
        take_step(ddp, optimizer, gradients(old, rank, step))
    own, whole = handle.state_dict(), [handle.full_state_dict()]
    dist.broadcast_object_list(whole)
    model = conv_of_zeros(formats[1])
    model.load_state_dict(old.state_dict())
    ddp, optimizer = wrap(Plain(model)), torch.optim.SGD(model.parameters(), lr=1.0)
    handle = thinwire.attach(ddp, optimizer, scheme=ALL, exchange=exchange)
    with pytest.raises(ValueError, match="another memory format.*full_state_dict"):
        handle.load_state_dict(own)
    handle.load_state_dict(whole[0])
    for _ in range(3):
        take_step(ddp, optimizer, [torch.zeros_like(parameter) for parameter in model.parameters()])
    return lacking(model, world)


@pytest.mark.parametrize("exchange", ["auto", "split"])
@pytest.mark.parametrize("back", [False, True], ids=["from_channels_last", "to_channels_last"])
def test_another_memory_format_keeps_owners_residuals(back, exchange):
    formats = [torch.channels_last, torch.contiguous_format]
    assert max(run(3, changes_format, formats[::-1] if back else formats, exchange)) < 1e-4


def mass(shards, parameter):
    """What all ranks keep of a parameter, with owners' parts once per worker."""
    total = torch.zeros(90)
    for shard in shards:
        for name, value in shard["entries"].items():
            if name == parameter + "/v":
                total += value
            elif name.startswith(parameter) and name.endswith("/owner/v"):
                cut = name[len(parameter) : -len("/owner/v")]
                first = int(cut[1:].split(":")[0]) if cut else 0
                total[first : first + value.numel()] += len(shards) * value
    return total


def shard(rank, world, entries):
    shares = {name: 0 if name.endswith("/v") else 2 for name in entries}
    return {
        "version": 1,
        "scheme": SPLIT,
        "world": world,
        "rank": rank,
        "layout": [["w"]],
        "steps": 4,
        "entries": entries,
        "shares": shares,
    }


@pytest.mark.parametrize("world", [1, 2, 4, 5])
@pytest.mark.parametrize("memory", [True, False])
def test_another_number_of_workers_keeps_owners_residuals(world, memory):
    generator = torch.Generator().manual_seed(1)
    shards = []
    for rank, (first, last) in enumerate([(0, 32), (32, 64), (64, 90)]):
        entries = {
            f"w[{first}:{last}]/owner/v": torch.randn(last - first, generator=generator),
            f"bucket0/owner{rank}/threshold0": 0.5,
        }
        if memory:
            entries["w/v"] = torch.randn(90, generator=generator)
        shards.append(shard(rank, 3, entries))
    before = mass(shards, "w")
    whole = {"version": 1, "world": 3, "shards": shards}
    new = [shard_for(whole, rank, world) for rank in range(world)]
    torch.testing.assert_close(mass(new, "w"), before)
    assert all("/owner" not in name for one in new for name in one["entries"])
