"""test_inspect: thinwire.inspect() on a user's own model, in one process."""

# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import thinwire
import torch
from torch import nn
from workers import net


def loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def batches(count):
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(16, 20, generator=generator), torch.randint(10, (16,), generator=generator))
        for _ in range(count)
    ]


def inspect(**options):
    return thinwire.inspect(net(), loss, batches(6), **options)


def test_figures_of_schemes():
    model = nn.Sequential(net(), nn.BatchNorm1d(10))
    model[0][0].weight.requires_grad_(False)
    before = [value.clone() for value in model.state_dict().values()]
    found = thinwire.inspect(
        model, loss, batches(6), schemes=["fp16", "topk:density=0.01", "terngrad"], steps=4
    )
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert all(parameter.grad is None for parameter in model.parameters())
    by_name = {one.scheme: one for one in found.figures}
    dense, half = by_name["dense"], by_name["fp16"]
    trained = sum(value.numel() for value in model.parameters() if value.requires_grad)
    assert found.parameters == trained and found.batches == 4
    assert dense.payload_bytes == 4 * trained and dense.error < 1e-6 and dense.ratio == 1
    assert half.payload_bytes == 2 * trained and 0 < half.error < 1e-3
    assert 0.5 < by_name["topk:density=0.01"].error < 1
    assert not by_name["topk:density=0.01"].loses
    for one in found.figures:
        assert one.step_seconds == pytest.approx(found.compute_seconds + one.exchange_seconds)
        assert one.exchange_seconds >= 2e-3, "a message and Gloo's handshake at least"
    assert [one.gradient_seconds for one in found.figures] == sorted(
        one.gradient_seconds for one in found.figures
    )


def test_the_verdict_depends_on_the_link():
    naive = "topk:density=0.01,feedback=off"
    slow = inspect(schemes=["fp16", naive], link="1mbit,1us")
    assert slow.take == "fp16" and str(slow).splitlines()[-1].startswith("Take fp16: ")
    lost = next(one for one in slow.figures if one.scheme.startswith("topk"))
    assert lost.loses and math.isinf(lost.gradient_seconds) and "loses" in str(slow)
    distant = inspect(schemes=["fp16"], link="inf,1s")  # latency alone: no scheme helps
    assert distant.take == "dense" and str(distant).splitlines()[-1].startswith("Take dense: ")


def test_all_schemes_by_default():
    names = {one.scheme.partition(":")[0] for one in inspect(steps=1).figures}
    assert names == {scheme.name for scheme in thinwire.schemes()}


@pytest.mark.parametrize(
    "part, options",
    [
        ("at least 2", {"workers": 1}),
        ("at least 1", {"steps": 0}),
        ("100mbit", {"link": "fast"}),
        ("desnity", {"schemes": ["dgc:desnity=1"]}),
    ],
)
def test_refusals(part, options):
    with pytest.raises((ValueError, RuntimeError), match=part):
        inspect(**options)


def test_batches_that_do_not_do():
    with pytest.raises(ValueError, match="empty"):
        thinwire.inspect(net(), loss, [])
    with pytest.raises(ValueError, match="batch 1 is not finite"):
        first, second = batches(2)
        thinwire.inspect(net(), loss, [first, (second[0] * math.nan, second[1])])
