#!/usr/bin/env python3
"""emulated_check: checks the emulated link: runs the same training over it and over a real link.
Needs root.

    sudo .venv/bin/python bench/emulated_check.py build/release [--links 100mbit,5ms ...] [--json F]

Each scheme trains a few steps (a) with `--link`, with its workers on this machine without any
limit, and (b) without it, with its workers in separate network namespaces. `tc` limits their
links (tbf, both directions), and a relay (relay.cc) holds their frames for the latency. A link
without latency needs only tc. Both start their workers anew in each round, in turn. A run's time
is the lower quartile of its steps after the first few, because other load on the machine can only
make a step slower. The output is the median, minimum and maximum of the rounds. Batches are small,
so that most of a step is spent on the link; computation counts in both.

A token bucket lets a burst pass at once after every pause, and each latency is a pause. With a
burst of 32 kB, 24 kB took 0.2 ms instead of 2.0, and 60 kB 2.6 ms instead of 5.0; with three frames
(namespaces.py) they take 1.8 and 4.9. Schemes must send many times the burst, or so little that
latency is all that counts.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

from namespaces import Network, missing

SCHEMES = ["dense", "bf16", "powersgd:rank=8", "dgc:density=0.001"]
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
WARM_UP = 3  # steps: workers share the weights, TCP finds its rate


def seconds_of(latency: str) -> float:
    unit = next(unit for unit in UNITS if latency.endswith(unit))
    return float(latency.removesuffix(unit)) * UNITS[unit]


class Check:
    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        self.options, self.file = options, f"{folder}/run.json"
        self.command = [
            f"{options.build}/apps/thinwire", "train", "--model", options.model,
            "--data", options.data, "--batch", str(options.batch), "--steps", str(options.steps),
            "--bucket-mb", str(options.bucket_mb),
            "--report-every", "1", "--check-every", "0", "--threads", "1", "--json", self.file]

    def row(self) -> dict[str, float]:
        rows = json.loads(pathlib.Path(self.file).read_text())["rows"][WARM_UP:]

        def quartile(name: str) -> float:
            return statistics.quantiles((row[name] for row in rows), n=4, method="inclusive")[0]

        return {"step": quartile("seconds_per_step"), "compute": quartile("compute_seconds"),
                "bytes": rows[-1]["sent_bytes_per_step"]}

    def emulated(self, scheme: str, link: str) -> dict[str, float]:
        command = [*self.command, "--scheme", scheme, "--workers", str(self.options.workers),
                   "--link", link]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"emulated_check: {' '.join(command)}: {done.stderr[-1000:]}")
        return self.row()

    def real(self, scheme: str, link: str) -> dict[str, float]:
        rate, _, latency = link.partition(",")
        with Network(self.options.workers) as network:
            network.shape(rate)
            if latency:
                network.delay(f"{self.options.build}/bench/link_relay", seconds_of(latency))
            common = {"WORLD_SIZE": str(self.options.workers), "MASTER_ADDR": network.address(0),
                      "MASTER_PORT": "29500"}
            workers = [network.start(rank, [*self.command, "--scheme", scheme],
                                     {**common, "RANK": str(rank)},
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                       for rank in range(self.options.workers)]
            for rank, worker in enumerate(workers):
                _, said = worker.communicate(timeout=self.options.patience)
                if worker.returncode != 0:
                    raise SystemExit(f"emulated_check: {scheme} over a real {link}: rank {rank}: "
                                     f"{said[-1000:]}")
        return self.row()


def measure(check: Check, options: argparse.Namespace) -> list[dict]:
    rows = []
    for link in options.links:
        for scheme in options.schemes:
            runs = [(check.emulated(scheme, link), check.real(scheme, link))
                    for _ in range(options.rounds)]
            emulated, real = ([run[side]["step"] for run in runs] for side in (0, 1))
            compute = statistics.median(run[side]["compute"] for run in runs for side in (0, 1))
            rows.append({"link": link, "scheme": scheme, "bytes": runs[-1][0]["bytes"],
                         "emulated": emulated, "real": real, "compute": compute,
                         "ratio": statistics.median(emulated) / statistics.median(real)})
            show(rows[-1])
    return rows


def show(row: dict) -> None:
    def times(all_rounds: list[float]) -> str:
        low, high = 1e3 * min(all_rounds), 1e3 * max(all_rounds)
        return f"{1e3 * statistics.median(all_rounds):8.1f} ms ({low:.1f} - {high:.1f})"

    print(f"{row['link']:16}{row['scheme']:20}{row['bytes'] / 1e3:11.1f} kB  "
          f"emulated {times(row['emulated']):30}real {times(row['real']):30}"
          f"computing {1e3 * row['compute']:6.1f} ms  emulated / real {row['ratio']:.3f}",
          flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", help="the build folder")
    parser.add_argument("--links", nargs="+", default=["100mbit", "100mbit,5ms", "100mbit,20ms"],
                        help="RATE[,LATENCY]")
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--data", default="synthetic:1x8x8:10")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--bucket-mb", type=float, default=4, help="0.1: several sums in flight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=300, help="seconds that a run may take")
    parser.add_argument("--json")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # leave through the with-block
        signal.signal(number, lambda *_: sys.exit("emulated_check: ended by a signal"))
    if reason := missing():
        raise SystemExit(f"emulated_check: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        print(f"{options.model} on {options.data}, {options.workers} workers, "
              f"batch {options.batch}, {options.steps} steps, {options.rounds} rounds; "
              f"load of this machine before: {os.getloadavg()[0]:.1f}", flush=True)
        rows = measure(Check(options, folder), options)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
