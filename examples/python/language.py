"""language: a character LSTM on the text of Python's own standard library, with DDP and thinwire.

    torchrun --nproc-per-node 4 examples/python/language.py --scheme dgc --density 0.01
    torchrun --nproc-per-node 4 examples/python/language.py --scheme powersgd
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import math
import os
import pathlib

import torch
import torch.distributed as dist
import thinwire
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def load_text(limit=400_000):
    folder = pathlib.Path(os.__file__).parent
    text = "".join(path.read_text(errors="ignore") for path in sorted(folder.glob("*.py")))[:limit]
    return torch.tensor([min(ord(character), 127) for character in text])


class CharacterModel(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 128)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheme", default="dgc")
    parser.add_argument("--density", type=float)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=48)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    text = load_text()
    torch.manual_seed(1)
    model = CharacterModel()
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True)
    # The paper's warm-up: early gradients change fast, so they are sent less sparsely.
    extra = (
        {}
        if options.density is None
        else {"density": options.density, "warmup": options.steps // 4}
    )
    handle = thinwire.attach(ddp, optimizer, scheme=options.scheme, **extra)

    for step in range(options.steps):
        generator = torch.Generator().manual_seed(step * world + rank)
        starts = torch.randint(
            len(text) - options.length - 1, (options.batch,), generator=generator
        )
        chunk = torch.stack([text[start : start + options.length + 1] for start in starts])
        optimizer.zero_grad()
        logits = ddp(chunk[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)  # the average, equal on all ranks
        optimizer.step()
        if rank == 0 and (step + 1) % max(1, options.steps // 5) == 0:
            print(
                f"step {step + 1}: perplexity {math.exp(min(20.0, loss.item())):.2f}, "
                f"1/{handle.step_report.ratio:.0f} of the bytes"
            )

    handle.check_replicas()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
