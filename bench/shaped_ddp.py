#!/usr/bin/env python3
"""shaped_ddp: steps per second of DDP over a really thin wire: dense, PyTorch's own hooks and
thinwire, in one run. Needs root.

    sudo PYTHONPATH=build/release/python .venv/bin/python bench/shaped_ddp.py \\
        [--quick] [--links 100mbit 1gbit none] [--json F]

Four workers run in four network namespaces, whose links a token bucket (tc, tbf) limits in both
directions. Gloo uses the namespaces' own addresses. All contenders live in the same workers,
each with its own model, created and warmed up before the links are limited. Then they take
blocks of steps in turn, so that other load on the machine affects all of them equally. A block
ends when the slowest worker does. Each round of blocks gives a ratio to dense; the output is the
median, minimum and maximum. Bytes are what the kernel counted as sent by a worker. PyTorch's
PowerSGD hook has all parameters in one bucket, because it aborts over Gloo with several.
"""

# SPDX-License-Identifier: Apache-2.0
import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time

from namespaces import DEVICE, Network, missing

DENSE = "DDP dense"
# PyTorch's bf16 hook needs CUDA or XPU; its fp16 hook sends as many bytes.
CONTENDERS = {  # name: PyTorch's hook, or thinwire's scheme
    DENSE: "",
    "PyTorch fp16": "hook fp16",
    "PyTorch PowerSGD rank 1": "hook powersgd 1",
    "PyTorch PowerSGD rank 2": "hook powersgd 2",
    "thinwire bf16": "bf16",
    "thinwire dgc 0.001": "dgc:density=0.001",
    "thinwire powersgd rank 1": "powersgd:rank=1",
    "thinwire powersgd rank 2": "powersgd:rank=2",
    "thinwire onebit": "onebit",
}
WORDS, WIDTH = 10000, 512  # 14.5 million parameters


# -- a worker: reads commands from standard input and answers each with a line of JSON


def language_model():
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm, self.head = (
                nn.Embedding(WORDS, WIDTH),
                nn.LSTM(WIDTH, WIDTH, 2, batch_first=True),
                nn.Linear(WIDTH, WORDS),
            )

        def forward(self, tokens):
            return self.head(self.lstm(self.embedding(tokens))[0]).flatten(0, 1)

    torch.manual_seed(0)
    return Model()


class Contender:
    def __init__(self, kind, options):
        import torch
        import thinwire
        from torch.nn.parallel import DistributedDataParallel

        self.options, self.steps, self.handle = options, 0, None
        self.model = language_model()
        self.ddp = DistributedDataParallel(
            self.model, bucket_cap_mb=1000 if "hook powersgd" in kind else 25
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        if kind.startswith("hook"):
            self._register(*kind.split()[1:])
        elif kind:
            self.handle = thinwire.attach(self.ddp, self.optimizer, scheme=kind)

    def _register(self, name, rank="0"):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        if name == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=int(rank), start_powerSGD_iter=2
            )
            self.ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        else:
            self.ddp.register_comm_hook(None, getattr(default_hooks, f"{name}_compress_hook"))

    def step(self):
        import torch

        generator = torch.Generator().manual_seed(1000 * self.steps + int(os.environ["RANK"]))
        tokens = torch.randint(
            WORDS, (self.options.batch, self.options.sequence + 1), generator=generator
        )
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.ddp(tokens[:, :-1]), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss

    def block(self, steps):
        import torch.distributed as dist

        dist.barrier()
        begin, sent = time.perf_counter(), sent_bytes()
        for _ in range(steps):
            loss = self.step()
        seconds = time.perf_counter() - begin
        dist.barrier()  # bytes that the kernel has still to send count too
        self.optimizer.zero_grad()
        void = self.handle.report().skipped if self.handle else 0
        return {"seconds": seconds, "bytes": sent_bytes() - sent, "loss": float(loss), "void": void}


def sent_bytes():
    return int(pathlib.Path(f"/sys/class/net/{DEVICE}/statistics/tx_bytes").read_text())


def work(options):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    field = {}
    for line in sys.stdin:
        name, steps = json.loads(line)
        if name not in field:
            field[name] = Contender(CONTENDERS[name], options)
        print(json.dumps(field[name].block(steps)), flush=True)


# -- the leader, outside the namespaces


class Workers:
    def __init__(self, network, options, errors):
        here = [
            sys.executable,
            "-W",
            "ignore",
            os.path.abspath(__file__),
            "--worker",
            f"--batch={options.batch}",
            f"--sequence={options.sequence}",
        ]
        common = {
            "WORLD_SIZE": str(len(network.names)),
            "MASTER_ADDR": network.address(0),
            "MASTER_PORT": "29500",
            "OMP_NUM_THREADS": "1",
            "THINWIRE_LOG": "warning",
        }
        self.errors = errors
        self.processes = [
            network.start(
                rank,
                here,
                {**common, "RANK": str(rank)},
                stdin=-1,
                stdout=-1,
                stderr=errors,
                text=True,
            )
            for rank in range(len(network.names))
        ]

    def block(self, name, steps):
        """Seconds per step of the slowest worker, and the mean of the bytes that each
        sent per step."""
        for process in self.processes:
            process.stdin.write(json.dumps([name, steps]) + "\n")
            process.stdin.flush()
        answers = [self._answer(rank, process, name) for rank, process in enumerate(self.processes)]
        for rank, answer in enumerate(answers):
            if answer["void"] or not abs(answer["loss"]) < 1e4:
                raise SystemExit(
                    f"shaped_ddp: {name}, rank {rank}: expected a training, got a loss of "
                    f"{answer['loss']} and {answer['void']} void steps"
                )
        return max(answer["seconds"] for answer in answers) / steps, statistics.mean(
            answer["bytes"] for answer in answers
        ) / steps

    def _answer(self, rank, process, name):
        line = process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise SystemExit(
                f"shaped_ddp: {name}: rank {rank} ended; the workers printed "
                f"last:\n{self.errors.read()[-3000:]}"
            )
        return json.loads(line)


def measure(workers, network, link, options):
    """For each contender, the seconds per step of each round, and the bytes of the last round."""
    network.shape(link)
    steps, seconds, sent = {}, {name: [] for name in options.contenders}, {}
    for name in options.contenders:  # also the first step over this link, which is not counted
        steps[name] = max(1, min(50, round(options.seconds / workers.block(name, 1)[0])))
    for _ in range(options.rounds):
        for name in options.contenders:
            taken, sent[name] = workers.block(name, steps[name])
            seconds[name].append(taken)
    return [
        {
            "link": link,
            "contender": name,
            "seconds_per_step": statistics.median(mine),
            "bytes_per_step": sent[name],
            "steps": steps[name],
            "rounds": mine,
            "ratios": sorted(dense / own for dense, own in zip(seconds[DENSE], mine)),
        }
        for name, mine in seconds.items()
    ]


def show(rows):
    links = list(dict.fromkeys(row["link"] for row in rows))
    print(f"{'':26}" + "".join(f"{link:>44}" for link in links))
    print(f"{'':26}" + f"{'steps/s':>11}{'x dense':>9}{'':15}{'MB/step':>9}" * len(links))
    for name in dict.fromkeys(row["contender"] for row in rows):
        cells = [row for row in rows if row["contender"] == name]
        print(f"{name:26}" + "".join(cell(row) for row in cells))


def cell(row):
    ratios = row["ratios"]
    spread = f"({ratios[0]:.1f} - {ratios[-1]:.1f})"
    return (f"{1 / row['seconds_per_step']:11.3f}{statistics.median(ratios):9.2f} {spread:14}"
            f"{row['bytes_per_step'] / 1e6:9.3f}")


def lead(options):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # leave through the with-block
        signal.signal(number, lambda *_: sys.exit("shaped_ddp: ended by a signal"))
    if reason := missing():
        raise SystemExit(f"shaped_ddp: {reason}")
    options.contenders = [
        DENSE,
        *(
            name
            for name in CONTENDERS
            if name != DENSE and any(wish in name for wish in options.only)
        ),
    ]
    rows = []
    with tempfile.TemporaryFile("w+") as errors, Network(options.workers) as network:
        workers = Workers(network, options, errors)
        print(
            f"LSTM language model, {options.workers} workers of one thread each, {options.batch} "
            f"x {options.sequence} words per worker and step, "
            f"{options.rounds} rounds; load of this machine before: {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        for name in (
            options.contenders
        ):  # DDP rebuilds its buckets after step one, PyTorch's PowerSGD starts with step three
            workers.block(name, 4)
        for link in options.links:
            rows += measure(workers, network, link, options)
    show(rows)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--links",
        nargs="+",
        default=["100mbit", "1gbit"],
        help="rates as tc writes them; none: not limited",
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        help="contenders with one of these in their names (and dense)",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=4, help="approximate length of a block; at least a step"
    )
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=16)
    parser.add_argument(
        "--quick", action="store_true", help="one round of one step each, to see that it runs"
    )
    parser.add_argument("--json")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0
    if options.worker:
        with contextlib.suppress(BrokenPipeError):
            work(options)
    else:
        lead(options)


if __name__ == "__main__":
    main()
