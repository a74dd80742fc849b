#!/usr/bin/env python3
"""delay_table.py PROGRAM [--rounds N] [--methods WORD] [--at-once CORES] [--json F]: steps per
second of synchronous training, FedAvg and delayed averaging over emulated links of growing latency,
with real processes. The tables show what each method keeps of its own speed without latency, its
speed-up over FedAvg with 5 local steps (as in Zhu et al. 2021), and how much of a step it waits for
others. PROGRAM is the `thinwire` command; WORD selects methods by name. A round takes five minutes.
There are two workers of one thread each, so that on two cores they do not compete for a processor.

A run is reported in eight parts. The first and the last part are left out (the last includes the
wait for the last messages), and the median of the others is its time: the speed of a training in
progress. A method's runs over all latencies follow each other, in reverse order in every other
round. With --at-once they run at the same time, each on its own CORES cores, and move to the
next cores in every round; this is for machines with many cores and other users. The output is
medians over the rounds, also of the ratios within a round, because other load on the machine
disturbs these least.
"""

import argparse, json, os, subprocess, tempfile
from concurrent.futures import ThreadPoolExecutor
from statistics import median

PARSER = argparse.ArgumentParser()
PARSER.add_argument("program")
PARSER.add_argument("--rounds", type=int, default=4)
PARSER.add_argument("--methods", default="")
PARSER.add_argument("--at-once", type=int, metavar="CORES")
PARSER.add_argument("--json")
OPTIONS = PARSER.parse_args()
TASK = (
    "--model cnn --data digits --workers 2 --threads 1 --batch 64 --lr 0.05 --momentum 0.5 "
    "--scheme dgc:density=0.01 --check-every 0"
)
LATENCIES = ["0ms", "1ms", "20ms", "100ms", "200ms"]
METHODS = [
    ("sync", "--delay 0"),
    ("FedAvg, K = 5", "--local-steps 5"),
    ("FedAvg, K = 10", "--local-steps 10"),
    ("FedAvg, K = 20", "--local-steps 20"),
    ("DGA, D = 20, K = 1", "--delay 20"),
    ("DGA, D = 20, K = 5", "--delay 20 --local-steps 5"),
    ("DGA, D = 120, K = 1", "--delay 120"),
    ("DGA, D = 120, K = 5", "--delay 120 --local-steps 5"),
]
METHODS = [(name, flags) for name, flags in METHODS if OPTIONS.methods in name]


def parts_of(flags, steps, latency, cores=()):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        pin = ["taskset", "--cpu-list", ",".join(map(str, cores))] if cores else []
        subprocess.run(
            [
                *pin,
                OPTIONS.program,
                "train",
                *TASK.split(),
                *flags.split(),
                "--steps",
                str(steps),
                "--report-every",
                str(steps // 8),
                "--link",
                f"inf,{latency}",
                "--json",
                out,
            ],
            check=True,
            capture_output=True,
        )
        with open(out) as file:
            return json.load(file)["rows"][1:-1]


def steps_of(name, latency):
    """A part contains a message of every method, and a run waits at most half a minute."""
    return 2000 if name.startswith("DGA") else 480 if latency in ("0ms", "1ms") else 160


parts = {}
if OPTIONS.at_once:
    CORES = sorted(os.sched_getaffinity(0))
    SEATS = [
        CORES[seat * OPTIONS.at_once : (seat + 1) * OPTIONS.at_once]
        for seat in range(len(LATENCIES))
    ]
    if len(SEATS[-1]) < OPTIONS.at_once:
        PARSER.error(
            f"--at-once {OPTIONS.at_once} needs {OPTIONS.at_once * len(LATENCIES)} cores, there "
            f"are {len(CORES)}"
        )
for number in range(OPTIONS.rounds):
    for name, flags in METHODS:
        if OPTIONS.at_once:
            seats = SEATS[number % len(SEATS) :] + SEATS[: number % len(SEATS)]
            with ThreadPoolExecutor() as pool:
                runs = pool.map(
                    lambda latency, cores: parts_of(flags, steps_of(name, latency), latency, cores),
                    LATENCIES,
                    seats,
                )
            runs = dict(zip(LATENCIES, runs))
        else:
            runs = {
                latency: parts_of(flags, steps_of(name, latency), latency)
                for latency in LATENCIES[:: -1 if number % 2 else 1]
            }
        for latency, run in runs.items():
            parts.setdefault((name, latency), []).append(run)
times = {
    key: [median(part["seconds_per_step"] for part in run) for run in runs]
    for key, runs in parts.items()
}
waits = {
    key: [
        median(part["exposed_seconds"] / part["seconds_per_step"] for part in run) for run in runs
    ]
    for key, runs in parts.items()
}


def ratio(upper, lower):
    """The median over rounds, with minimum and maximum."""
    if upper not in times or lower not in times:
        return "-"
    ratios = sorted(a / b for a, b in zip(times[upper], times[lower]))
    return f"{median(ratios):.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f})"


def table(title, cell, columns):
    print(f"\n{title:20}" + "".join(f"{column:>22}" for column in columns))
    for name, _ in METHODS:
        print(f"{name:20}" + "".join(f"{cell(name, column):>22}" for column in columns))


table("ms per step", lambda name, latency: f"{1e3 * median(times[name, latency]):.2f}", LATENCIES)
table("of that at 0 ms", lambda name, latency: ratio((name, latency), (name, "0ms")), LATENCIES[1:])
table("waiting, %", lambda name, latency: f"{100 * median(waits[name, latency]):.1f}", LATENCIES)
table(
    "speed-up", lambda name, latency: ratio(("FedAvg, K = 5", latency), (name, latency)), LATENCIES
)
if OPTIONS.json:
    with open(OPTIONS.json, "w") as file:
        json.dump(
            [
                {"method": name, "latency": latency, "parts": runs}
                for (name, latency), runs in parts.items()
            ],
            file,
            indent=1,
        )
