"""test_delay_state: checkpoints of delayed averaging: exact with messages in flight, and then
the same bits as the C++ trainer."""

# SPDX-License-Identifier: Apache-2.0
import copy
import os
import subprocess

import pytest
import torch
import thinwire
from test_delay import FORMS, attached
from thinwire import _native
from workers import net, run, sgd, train, weights, wrap


def resumes(rank, world, form, options):
    model, optimizer, handle = attached(form, **options)
    train(model, optimizer, rank, range(9))
    assert handle.in_flight > 0
    saved = copy.deepcopy([optimizer.state_dict(), handle.state_dict()])
    train(model, optimizer, rank, range(9, 20))
    expected = weights(model)
    with pytest.raises(thinwire.Error, match="before the first step"):
        handle.load_state_dict(saved[1])

    other = net(seed=1)
    other_optimizer = FORMS[form](other)
    other_handle = thinwire.attach(other, other_optimizer, **options)
    other_optimizer.load_state_dict(saved[0])
    other_handle.load_state_dict(saved[1])
    assert other_handle.in_flight > 0
    train(other, other_optimizer, rank, range(9, 20))
    assert torch.equal(weights(other), expected)
    assert other_handle.step_report.step == 20 and other_handle.report().steps == 11
    handle.drain(), other_handle.drain()
    assert torch.equal(weights(other), weights(model))

    for change, part in (
        ({"delay": 3}, "'delay': '3'"),
        ({"scheme": "topk:density=0.2"}, "density=0.2"),
        ({"correction": "ledger:book=b"}, "ledger"),
    ):
        third = net()
        third_handle = thinwire.attach(third, FORMS[form](third), **{**options, **change})
        with pytest.raises(ValueError, match=part):
            third_handle.load_state_dict(saved[1])
    with pytest.raises(ValueError, match="5 workers"):
        third_handle.load_state_dict({**saved[1], "world": 5})
    synchronous_handle = thinwire.attach(wrap(third := net()), sgd(third), scheme="dense")
    with pytest.raises(ValueError, match="delay="):
        synchronous_handle.load_state_dict(saved[1])


@pytest.mark.parametrize(
    "form,options",
    [
        ("sgd", {"scheme": "dgc:density=0.05", "delay": 6, "local_steps": 2}),
        ("adamw", {"scheme": "topk:density=0.1", "delay": 4, "correction": "soft:book=b"}),
    ],
    ids=["dgc", "adamw"],
)
def test_resume_is_exact_with_messages_under_way(form, options):
    run(2, resumes, form, options)


TRAINED = (
    "--model mlp --data digits --workers 2 --steps 40 --lr 0.125 --momentum 0.5 --seed 3 "
    "--batch 16 --delay 4 --local-steps 2 --scheme bf16"
)


def goes_on(rank, world, path, first, last):
    from test_trainer import Mlp, trainer_data

    entries = _native.load_file(f"{path}.rank{rank}")
    data, model = trainer_data.open_data("digits", 0), Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    handle = thinwire.attach(model, optimizer, scheme="bf16", delay=4, local_steps=2)
    for name, parameter in model.named_parameters():
        optimizer.state[parameter]["momentum_buffer"] = (
            entries[name + "/velocity"][1].view_as(parameter).clone()
        )
    handle.load_state_dict(
        {
            **handle.state_dict(),
            "entries": {name: value for name, (_, value) in entries.items()},
            "shares": {name: share for name, (share, _) in entries.items()},
        }
    )
    for step in range(first, last):
        x, y = data.train_batch(3, step, rank, world, 16)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    own = {
        name + "/own": parameter.detach().flatten() for name, parameter in model.named_parameters()
    }
    with handle.anchor():
        return {
            **own,
            **{
                name + "/weights": parameter.detach().flatten().clone()
                for name, parameter in model.named_parameters()
            },
        }


def test_the_same_bits_as_the_trainer(tmp_path):
    pytest.importorskip("trainer_data")
    for stop in (7, 18):
        subprocess.run(
            [
                os.environ["THINWIRE"],
                "train",
                *TRAINED.split(),
                "--stop",
                str(stop),
                "--save",
                str(tmp_path / str(stop)),
            ],
            check=True,
            capture_output=True,
        )
    for rank, found in enumerate(run(2, goes_on, str(tmp_path / "7"), 7, 18)):
        expected = _native.load_file(f"{tmp_path / '18'}.rank{rank}")
        for name, values in found.items():
            assert torch.equal(values, expected[name][1]), f"rank {rank}, {name}"
