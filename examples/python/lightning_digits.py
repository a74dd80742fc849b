"""lightning_digits: thinwire in PyTorch Lightning: a HookState and a hook for DDPStrategy.
Lightning passes hooks to DDP only for CUDA models; the three lines of CpuStrategy do it for the
CPU.

    python examples/python/lightning_digits.py --workers 2
"""
# SPDX-License-Identifier: Apache-2.0
import argparse

import lightning
import thinwire
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from digits import load_digits, make_model


class CpuStrategy(DDPStrategy):
    def configure_ddp(self):
        super().configure_ddp()
        self.model.register_comm_hook(self._ddp_comm_state, self._ddp_comm_hook)


class Digits(lightning.LightningModule):
    def __init__(self, scheme, options):
        super().__init__()
        self.model = make_model()
        # Outside the module, so that Lightning does not take it for part of the network.
        self.thinwire = thinwire.HookState(scheme, model=self, **options)

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self.model(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        self.thinwire.take_over(optimizer)
        return optimizer

    def on_save_checkpoint(self, checkpoint):
        checkpoint["thinwire"] = self.thinwire.full_state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.thinwire.load_state_dict(checkpoint["thinwire"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheme", default="dgc")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()

    (x, y), (test_x, test_y) = load_digits()
    module = Digits(options.scheme, {"density": options.density})
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.workers,
        max_steps=options.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        strategy=CpuStrategy(
            process_group_backend="gloo",
            ddp_comm_state=module.thinwire,
            ddp_comm_hook=thinwire.hook,
        ),
    )
    trainer.fit(
        module,
        DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(test_x, test_y), batch_size=90),
    )
    if trainer.global_rank == 0:
        report = module.thinwire.report()
        print(
            f"{module.thinwire.scheme}: accuracy {trainer.callback_metrics['accuracy']:.4f} "
            f"after {report.steps} steps, "
            f"{options.workers} workers, 1/{report.ratio:.0f} of the bytes"
        )


if __name__ == "__main__":
    main()
