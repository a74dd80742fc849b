#!/usr/bin/env python3
"""delay_table.py PROGRAM [--json F]: steps per second of synchronous training, FedAvg and delayed averaging over emulated
links of growing latency, real processes, as one table: what each keeps of its own speed without latency, and its speed-up
over FedAvg with 5 local steps (as in Zhu et al. 2021). PROGRAM: the `thinwire` command. Some ten minutes on two cores.
"""
import json, os, subprocess, sys, tempfile

PROGRAM = sys.argv[1]
OUT = sys.argv[3] if len(sys.argv) > 3 and sys.argv[2] == "--json" else ""
TASK = "--model cnn --data digits --workers 4 --batch 64 --lr 0.05 --momentum 0.5 --scheme dgc:density=0.01 --report-every 100000 --check-every 0"
LATENCIES = ["0ms", "1ms", "20ms", "100ms", "200ms"]
METHODS = [("sync", "--delay 0"), ("FedAvg, K = 5", "--local-steps 5"), ("FedAvg, K = 10", "--local-steps 10"),
           ("FedAvg, K = 20", "--local-steps 20"), ("DGA, K = 1", "--delay 120"), ("DGA, K = 5", "--delay 120 --local-steps 5")]
REPEATS = 2  # the best counts: what disturbs a run only makes it slower


def seconds_per_step(flags, steps, latency):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        subprocess.run([PROGRAM, "train", *TASK.split(), *flags.split(), "--steps", str(steps), "--link", f"inf,{latency}",
                        "--json", out], check=True, capture_output=True)
        with open(out) as file:
            return json.load(file)["final"]["seconds_per_step"]


def steps_of(name, latency):
    """Enough that the start and the drain do not count, and no more than half a minute of waiting."""
    return 1000 if name.startswith("DGA") or latency in ("0ms", "1ms") else 100


best = {}
for _ in range(REPEATS):
    for latency in LATENCIES:
        for name, flags in METHODS:
            time = seconds_per_step(flags, steps_of(name, latency), latency)
            best[name, latency] = min(time, best.get((name, latency), time))

print(f"{'ms per step':16}" + "".join(f"{latency:>10}" for latency in LATENCIES) + f"{'200ms/0ms':>12}{'speed-up':>10}")
for name, _ in METHODS:
    times = [best[name, latency] for latency in LATENCIES]
    print(f"{name:16}" + "".join(f"{1e3 * time:10.2f}" for time in times) +
          f"{times[-1] / times[0]:12.2f}{best['FedAvg, K = 5', LATENCIES[-1]] / times[-1]:10.2f}")
if OUT:
    with open(OUT, "w") as file:
        json.dump([{"method": name, "latency": latency, "seconds_per_step": time} for (name, latency), time in best.items()], file, indent=1)
