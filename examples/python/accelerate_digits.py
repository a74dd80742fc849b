"""accelerate_digits: thinwire in Hugging Face Accelerate. prepare() wraps the model in DDP;
attach() takes the result, with the original optimizer. Accelerate's own comm-hook arguments accept
only PyTorch's hooks, so --plain registers a HookState and a hook here.

    accelerate launch --cpu --num_processes 2 examples/python/accelerate_digits.py
    torchrun --nproc-per-node 2 examples/python/accelerate_digits.py
"""
# SPDX-License-Identifier: Apache-2.0
import argparse

import thinwire
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from digits import load_digits, make_model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheme", default="dgc")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--plain", action="store_true", help="use a state and a hook instead of attach()"
    )
    options = parser.parse_args()

    (x, y), (test_x, test_y) = load_digits()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    ddp, wrapped, loader = accelerator.prepare(model, optimizer, loader)
    if options.plain:
        handle = thinwire.HookState(
            options.scheme, model=model, optimizer=optimizer, density=options.density
        )
        ddp.register_comm_hook(handle, thinwire.hook)
    else:
        handle = thinwire.attach(ddp, optimizer, scheme=options.scheme, density=options.density)

    step = 0
    while step < options.steps:
        for images, labels in loader:
            wrapped.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(ddp(images), labels))
            wrapped.step()
            step += 1
            if step == options.steps:
                break

    if accelerator.is_main_process:
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean()
        report = handle.report()
        print(
            f"{handle.scheme}: accuracy {accuracy:.4f} after {report.steps} steps, "
            f"{accelerator.num_processes} workers, "
            f"1/{report.ratio:.0f} of the bytes"
        )
    accelerator.end_training()


if __name__ == "__main__":
    main()
