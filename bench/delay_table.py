#!/usr/bin/env python3
"""delay_table.py PROGRAM [--rounds N] [--json F]: steps per second of synchronous training, FedAvg and delayed averaging over emulated
links of growing latency, real processes, as one table: what each keeps of its own speed without latency, and its speed-up
over FedAvg with 5 local steps (as in Zhu et al. 2021). PROGRAM: the `thinwire` command. Five minutes a round; two workers
of one thread, so that on two cores they do not wait for each other's processor.

A method's runs over all latencies follow each other, several times over. Printed are medians of the times, and medians of
the ratios within a round, which whatever else the machine does from minute to minute disturbs least.
"""
import argparse, json, os, statistics, subprocess, tempfile

PARSER = argparse.ArgumentParser()
PARSER.add_argument("program")
PARSER.add_argument("--rounds", type=int, default=3)
PARSER.add_argument("--json")
OPTIONS = PARSER.parse_args()
TASK = "--model cnn --data digits --workers 2 --threads 1 --batch 64 --lr 0.05 --momentum 0.5 --scheme dgc:density=0.01 --report-every 100000 --check-every 0"
LATENCIES = ["0ms", "1ms", "20ms", "100ms", "200ms"]
METHODS = [("sync", "--delay 0"), ("FedAvg, K = 5", "--local-steps 5"), ("FedAvg, K = 10", "--local-steps 10"),
           ("FedAvg, K = 20", "--local-steps 20"), ("DGA, K = 1", "--delay 120"), ("DGA, K = 5", "--delay 120 --local-steps 5")]


def seconds_per_step(flags, steps, latency):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        subprocess.run([OPTIONS.program, "train", *TASK.split(), *flags.split(), "--steps", str(steps), "--link", f"inf,{latency}",
                        "--json", out], check=True, capture_output=True)
        with open(out) as file:
            return json.load(file)["final"]["seconds_per_step"]


def steps_of(name, latency):
    """Enough that the start and the drain, a latency long, do not count; and no more than ten seconds of waiting."""
    return 4000 if name.startswith("DGA") else 300 if latency in ("0ms", "1ms") else 40


times = {}
for _ in range(OPTIONS.rounds):
    for name, flags in METHODS:
        for latency in LATENCIES:
            times.setdefault((name, latency), []).append(seconds_per_step(flags, steps_of(name, latency), latency))


def ratio(upper, lower):
    """The median over rounds, and the extremes."""
    ratios = sorted(a / b for a, b in zip(times[upper], times[lower]))
    return f"{statistics.median(ratios):8.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f})"


print(f"{'ms per step':16}" + "".join(f"{latency:>10}" for latency in LATENCIES) + f"{'200ms/0ms':>22}{'speed-up':>22}")
for name, _ in METHODS:
    print(f"{name:16}" + "".join(f"{1e3 * statistics.median(times[name, latency]):10.2f}" for latency in LATENCIES) +
          f"{ratio((name, '200ms'), (name, '0ms')):>22}{ratio(('FedAvg, K = 5', '200ms'), (name, '200ms')):>22}")
if OPTIONS.json:
    with open(OPTIONS.json, "w") as file:
        json.dump([{"method": name, "latency": latency, "seconds_per_step": rounds} for (name, latency), rounds in times.items()], file, indent=1)
