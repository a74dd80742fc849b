"""test_advise: thinwire.advise() on a user's own model."""

# SPDX-License-Identifier: Apache-2.0
import dataclasses
import math
import random

import pytest
import thinwire
import torch
from torch import nn
from test_simulate import one_thread  # noqa: F401  (a fixture)
from workers import net

WORKERS = 4


def data():
    """Ten classes that a small net learns in some hundred steps."""
    generator = torch.Generator().manual_seed(5)
    centers = torch.randn(10, 20, generator=generator)
    y = torch.randint(10, (512,), generator=generator)
    return torch.utils.data.TensorDataset(
        centers[y] + 0.5 * torch.randn(512, 20, generator=generator), y
    )


def loader():
    return torch.utils.data.DataLoader(data(), 32, shuffle=True, drop_last=True)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def accuracy(model):
    x, y = data().tensors
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def advise(**options):
    settings = {"workers": WORKERS, "steps": 40, "link": "1mbit,1ms", **options}
    evaluate = settings.pop("evaluate", None)
    batches = settings.pop("batches", None)
    return thinwire.advise(net(), settings.pop("make", sgd), settings.pop("loss", loss),
                           loader() if batches is None else batches, evaluate, **settings)


def by_name(advice):
    return {one.scheme.partition(",")[0]: one for one in advice.outcomes}


def test_a_table_and_a_verdict():
    bad = "topk:density=0.001,feedback=off"
    model = net()
    before = [value.clone() for value in model.state_dict().values()]
    states = torch.random.get_rng_state(), random.getstate()
    found = thinwire.advise(model, sgd, loss, loader(), accuracy, schemes=["bf16", "onebit", bad],
                            workers=WORKERS, steps=40, link="1mbit,1ms", maximize=True,
                            tolerance=0.02)
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert torch.equal(states[0], torch.random.get_rng_state()) and states[1] == random.getstate()
    schemes = by_name(found)
    dense, half, one = schemes["dense"], schemes["bf16"], schemes["onebit"]
    assert dense.score > 0.9 and dense.loses == 0 and dense.within
    assert half.within and abs(half.loses) <= 0.02 and half.loses == pytest.approx(
        (dense.score - half.score) / dense.score)
    lost = next(one for one in found.outcomes if one.scheme.startswith("topk"))
    assert not lost.within and lost.loses > 0.02 and lost.ratio > 100
    assert 2 * half.payload_bytes == dense.payload_bytes
    assert [each.payload_bytes for each in found.outcomes] == sorted(
        each.payload_bytes for each in found.outcomes)
    assert half.step_seconds < dense.step_seconds
    assert found.take == ("onebit" if one.within else "bf16")
    text = str(found).splitlines()
    assert len(text) == 2 + 4 + 1 and text[-1].startswith(f"Take {found.take}: it loses ")
    assert text[2].startswith("topk") and " !" in text[2] and "higher scores" in text[0]


def test_every_run_sees_the_same():
    seen = []

    def noted(model, batch):
        seen.append((float(batch[0].sum()), random.random(), float(model[0].weight.sum())))
        return loss(model, batch)

    found = advise(schemes=["dense", "fp16"], steps=20, loss=noted)
    half = len(seen) // 2
    assert half == 20 * WORKERS and len(found.outcomes) == 2
    assert [one[:2] for one in seen[:half]] == [one[:2] for one in seen[half:]]
    assert seen[0] == seen[half], "the same weights at the start"
    assert seen[0][0] != seen[16 * WORKERS][0], "another epoch is shuffled otherwise"


def test_a_generator_of_the_loader_is_seeded_too():
    for place in ("loader", "sampler"):
        mine = torch.Generator().manual_seed(7)
        before = mine.get_state()
        sampler = torch.utils.data.RandomSampler(data(), generator=mine)
        order = {"generator": mine, "shuffle": True} if place == "loader" else {"sampler": sampler}
        batches = torch.utils.data.DataLoader(data(), 32, drop_last=True, **order)
        found = advise(schemes=["topk:density=1,values=f32"], batches=batches, steps=12, seeds=2)
        dense, same = (one.scores for one in found.outcomes)
        assert dense == pytest.approx(same, rel=1e-4) and dense[0] != dense[1]
        assert torch.equal(mine.get_state(), before)


def test_several_seeds():
    sums = []

    def noted(model, batch):
        sums.append(float(batch[0].sum()))
        return loss(model, batch)

    one = advise(schemes=["fp16"], steps=20)
    found = advise(schemes=["fp16"], steps=20, seeds=2, loss=noted)
    dense, half = (by_name(found)[name] for name in ("dense", "fp16"))
    runs = [sums[i * 20 * WORKERS:(i + 1) * 20 * WORKERS] for i in range(4)]
    assert runs[0] == runs[2] != runs[1] == runs[3]
    assert dense.scores[0] == by_name(one)["dense"].score != dense.scores[1]
    assert (dense.loses, dense.noise) == (0, 0)
    lost = [(a - b) / b for a, b in zip(half.scores, dense.scores)]
    assert half.loses == pytest.approx(sum(lost) / 2)
    assert half.noise == pytest.approx(abs(lost[0] - lost[1]) / 2)
    assert "2 seeds" in str(found) and "±" in str(found) and "±" not in str(one)
    assert "One seed" not in str(found).splitlines()[-1]
    strict = dataclasses.replace(found, take="fp16", tolerance=half.loses + half.noise / 2)
    assert str(strict).endswith("take more steps, or seeds.")


def test_seeds_that_change_nothing():
    batches = [batch for _, batch in zip(range(12), loader())]
    for given in (batches, iter(batches)):
        found = advise(schemes=["fp16"], steps=12, seeds=2, batches=given, link="1mbit,0us",
                       tolerance=1.0)
        text = str(found)
        assert "±" not in text and all(math.isnan(one.noise) for one in found.outcomes)
        assert "2 seeds, which changed nothing" in text and found.take == "fp16"
        assert "The 2 seeds changed nothing: all runs" in text and "shuffle=True" in text
    # Scores alike by chance are no such thing.
    found = advise(schemes=["fp16"], steps=3, seeds=2, evaluate=lambda _: 1.0)
    assert found.outcomes[0].noise == 0 and "±" in str(found)


def test_the_score_is_that_of_a_simulation():
    batches = [batch for _, batch in zip(range(12), loader())]
    found = advise(schemes=["dgc:density=0.1"], steps=12, batches=iter(batches), evaluate=lambda
                   model: float(loss(model, data().tensors).detach()))
    model = net()
    optimizer = sgd(model.parameters())
    sim = thinwire.simulate(model, optimizer, WORKERS, "dgc:density=0.1",
                            find_unused_parameters=True)
    for batch in batches:
        optimizer.zero_grad()
        for _, part in sim.shares(batch):
            loss(model, part).backward()
        optimizer.step()
    outcome = found.outcomes[0]
    assert outcome.scheme.startswith("dgc") and outcome.ratio == sim.report().ratio
    assert outcome.score == float(loss(model, data().tensors))


def test_the_verdict_depends_on_the_link():
    assert advise(schemes=["fp16"], tolerance=1.0).take == "fp16"
    far = advise(schemes=["fp16"], link="1mbit,1s", tolerance=1.0)
    times = {one.scheme: one.step_seconds for one in far.outcomes}
    assert 0.9 * times["dense"] < times["fp16"] < times["dense"]
    assert far.take == "dense" and "Take dense: no scheme makes" in str(far)
    strict = advise(schemes=["topk:density=0.001,feedback=off"])
    assert strict.take == "dense" and "Take dense: every scheme loses" in str(strict)


def test_schemes_by_default_and_a_scheduler():
    rates = []

    def adam(parameters):
        optimizer = torch.optim.Adam(parameters, lr=0.01)

        def rate(step):
            rates.append(step)
            return 1.0

        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    found = advise(make=adam, steps=3)
    names = {one.scheme.partition(":")[0] for one in found.outcomes}
    assert names == {"dense", "bf16", "int8", "powersgd", "topk"} and max(rates) == 3
    names = {one.scheme.partition(":")[0] for one in advise(steps=2).outcomes}
    assert {"onebit", "dgc", "dense"} < names


def test_a_run_that_diverges():
    def make(parameters):
        return torch.optim.SGD(parameters, lr=1e20)

    with pytest.raises(ValueError, match="dense has diverged"):
        advise(make=make, schemes=[], steps=5)
    found = advise(schemes=["bf16"], steps=2)
    bad = dataclasses.replace(found.outcomes[0], scores=(float("nan"),))
    assert "diverged" in str(dataclasses.replace(found, outcomes=[*found.outcomes[1:], bad]))


@pytest.mark.parametrize(
    "part, options",
    [
        ("workers=1: expected at least 2", {"workers": 1}),
        ("steps=0: expected at least 1", {"steps": 0}),
        ("seeds=0: expected at least 1", {"seeds": 0}),
        ("100mbit", {"link": "fast"}),
        ("desnity", {"schemes": ["dgc:desnity=1"]}),
        ("needs evaluate", {"maximize": True}),
        ("batches is empty", {"batches": []}),
        ("needs torch.optim.SGD", {"make": torch.optim.Adam, "schemes": ["dgc"]}),
    ],
)
def test_refusals(part, options):
    with pytest.raises((ValueError, RuntimeError), match=part):
        advise(**options)
