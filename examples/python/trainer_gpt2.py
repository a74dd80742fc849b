"""trainer_gpt2: thinwire in Hugging Face's Trainer, with checkpoints. The model is a tiny GPT-2,
created here; the text is Python's own standard library. A callback attaches after the Trainer has
wrapped the model, and saves each rank's state beside the Trainer's checkpoint.

    torchrun --nproc-per-node 2 examples/python/trainer_gpt2.py --folder run --steps 60
    torchrun --nproc-per-node 2 examples/python/trainer_gpt2.py --folder run --steps 120 --resume
    60
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import pathlib

import thinwire
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from language import load_text


class Thinwire(TrainerCallback):
    """A callback for trainer.add_callback(). `options` are those of thinwire.attach()."""

    def __init__(self, trainer, optimizer, **options):
        self.trainer, self.optimizer, self.options = trainer, optimizer, options
        self.handle = None

    def on_train_begin(self, args, state, control, **kwargs):
        if args.max_grad_norm:
            raise ValueError(
                "thinwire: set max_grad_norm=0 and give the scheme clip=: the Trainer would cut "
                "velocities, for good"
            )
        self.handle = thinwire.attach(self.trainer.model_wrapped, self.optimizer, **self.options)
        shards = sorted(self.folder(args, state).glob("thinwire_*.pt"))
        if state.global_step > 0:  # resumed; the number of workers may have changed
            self.handle.load_state_dict(
                thinwire.merge_states([torch.load(shard, weights_only=True) for shard in shards])
            )

    def on_save(self, args, state, control, **kwargs):
        torch.save(
            self.handle.state_dict(), self.folder(args, state) / f"thinwire_{args.process_index}.pt"
        )

    @staticmethod
    def folder(args, state):
        return pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}"


class Text(torch.utils.data.Dataset):
    def __init__(self, length=32, limit=100_000):
        text = load_text(limit)
        self.chunks = text[: len(text) // length * length].view(-1, length)

    def __len__(self):
        return len(self.chunks)

    def __getitem__(self, index):
        return {"input_ids": self.chunks[index], "labels": self.chunks[index]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheme", default="dgc")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", default="run")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument(
        "--resume", type=int, metavar="STEP", help="resume from the checkpoint of this step"
    )
    options = parser.parse_args()

    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=128,
        n_positions=32,
        n_embd=48,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    arguments = TrainingArguments(
        output_dir=options.folder,
        max_steps=options.steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        lr_scheduler_type="constant",
        save_strategy="steps",
        save_steps=options.save_every,
        logging_steps=options.steps,
        seed=1,
        max_grad_norm=0,  # the Trainer would clip velocities; the scheme clips gradients
        ddp_find_unused_parameters=False,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Text(), optimizers=(optimizer, None)
    )
    thinwire_callback = Thinwire(
        trainer, optimizer, scheme=options.scheme, density=options.density, clip=1
    )
    trainer.add_callback(thinwire_callback)
    trainer.train(
        resume_from_checkpoint=options.resume and f"{options.folder}/checkpoint-{options.resume}"
    )

    handle = thinwire_callback.handle
    handle.check_replicas()
    if arguments.process_index == 0:
        loss = model(
            **{
                name: value[:64]
                for name, value in (("input_ids", Text().chunks), ("labels", Text().chunks))
            }
        ).loss
        report = handle.report()
        print(
            f"{handle.scheme}: loss {float(loss.detach()):.6f} "
            f"after {handle.step_report.step} steps "
            f"({report.steps} of them now), "
            f"{os.environ.get('WORLD_SIZE', '1')} workers, 1/{report.ratio:.0f} of the bytes"
        )


if __name__ == "__main__":
    main()
