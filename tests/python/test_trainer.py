"""test_trainer: the C++ trainer and a Python training script, from the same weights, memory and
batches, end with the same bits."""

# SPDX-License-Identifier: Apache-2.0
import os
import subprocess

import pytest
import torch
import thinwire
from torch.nn.parallel import DistributedDataParallel
from thinwire import _native
from workers import run

trainer_data = pytest.importorskip("trainer_data")

SEED, BATCH, WORKERS, FIRST, LAST = 3, 16, 2, 1, 9
MOMENTUM, DECAY = 0.9, 2.0**-7
RATE = 0.125  # a power of two: torch rounds weight + rate * step once, the trainer twice


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.classifier = torch.nn.Sequential(
            torch.nn.Linear(64, 300),
            torch.nn.ReLU(),
            torch.nn.Linear(300, 300),
            torch.nn.ReLU(),
            torch.nn.Linear(300, 10),
        )

    def forward(self, x):
        return self.classifier(x.flatten(1))


def arrival(model, x, y):
    """Parameters in the order in which backward completes them, as the trainer lays them out."""
    order = []
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
        for name, parameter in model.named_parameters()
    ]
    torch.nn.functional.cross_entropy(model(x), y).backward()
    model.zero_grad()
    for hook in hooks:
        hook.remove()
    return order


def goes_on(rank, world, path, scheme):
    entries = _native.load_file(f"{path}.rank{rank}")
    data = trainer_data.open_data("digits", 0)
    model = Mlp()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(entries[name + "/weights"][1].view_as(parameter))
    layout = [arrival(model, *data.train_batch(SEED, 0, 0, world, 2))]
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    for name, parameter in model.named_parameters():
        if name + "/velocity" in entries:
            optimizer.state[parameter]["momentum_buffer"] = (
                entries[name + "/velocity"][1].view_as(parameter).clone()
            )
    ddp = DistributedDataParallel(model)
    handle = thinwire.attach(ddp, optimizer, scheme=scheme)
    mine = {
        name: entry
        for name, entry in entries.items()
        if not name.startswith(("settings/", "training/"))
        and not name.endswith(("/weights", "/velocity"))
    }
    for name, parameter in model.named_parameters():
        if name + "/decay" in mine:
            mine[name + "/decay"] = (1, mine[name + "/decay"][1].view_as(parameter))
    handle.load_state_dict(
        {
            "version": 1,
            "scheme": handle.scheme,
            "world": world,
            "rank": rank,
            "layout": layout,
            "steps": FIRST,
            "entries": {name: value for name, (_, value) in mine.items()},
            "shares": {name: share for name, (share, _) in mine.items()},
        }
    )
    for step in range(FIRST, LAST):
        x, y = data.train_batch(SEED, step, rank, world, BATCH)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    return {name: parameter.detach().flatten() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    "scheme", ["dense", "dgc:density=0.01", "topk:density=0.01", "powersgd", "onebit"]
)
def test_the_same_bits_as_the_trainer(scheme, tmp_path):
    def trainer(stop):
        path = tmp_path / f"stop{stop}"
        flags = (
            f"--model mlp --data digits --workers {WORKERS} --steps 20 --stop {stop} "
            f"--lr {RATE} --momentum {MOMENTUM} "
            f"--weight-decay {DECAY} --seed {SEED} --batch {BATCH} --scheme {scheme} --save {path}"
        )
        subprocess.run(
            [os.environ["THINWIRE"], "train", *flags.split()], check=True, capture_output=True
        )
        return path

    expected = _native.load_file(f"{trainer(LAST)}.rank0")
    for rank, found in enumerate(run(WORKERS, goes_on, str(trainer(FIRST)), scheme)):
        for name, values in found.items():
            assert torch.equal(values, expected[name + "/weights"][1]), (
                f"{scheme}: rank {rank}, {name}"
            )
