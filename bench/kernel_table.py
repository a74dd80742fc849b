#!/usr/bin/env python3
"""kernel_table.py PROGRAM: a table of every kernel in a step of a scheme on one GPU: its time, what
the bytes that it moved to and from memory cost a copy (the floor), and what the rest of it is.

    bench/kernel_table.py build/cuda/bench/one_step_cuda [--schemes dgc topk]
                          [--sizes ResNet-50=25557032,VGG-16=138357544] [--ranks 8] [--json F]

Nsight Compute (ncu) measures each kernel alone, so the sum is more than a step in which kernels
start early and overlap; clocks are not changed and caches not flushed. "calls" and "us" are per
step. The floor is bytes / bandwidth, the bandwidth that of a copy of the model's floats of the same
run (25 million floats: 20 bytes each). The rest is the main reason why warps waited, by the
profiler's samples; a kernel with less than a wave of blocks says how many it has.
SPDX-License-Identifier: Apache-2.0
"""

import argparse, csv, io, json, re, subprocess, sys

PARSER = argparse.ArgumentParser()
PARSER.add_argument("program")
PARSER.add_argument("--schemes", nargs="+", default=["dgc", "topk"])
PARSER.add_argument("--sizes", default="ResNet-50=25557032,VGG-16=138357544")
PARSER.add_argument("--ranks", default="8")
PARSER.add_argument("--json")
OPTIONS = PARSER.parse_args()
STEPS = 2
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
REASONS = {
    "long_scoreboard": "waits for memory",
    "lg_throttle": "queue of memory accesses full",
    "mio_throttle": "queue of shared memory full",
    "short_scoreboard": "waits for shared memory",
    "barrier": "waits for its block",
    "membar": "waits for a memory fence",
    "math_pipe_throttle": "arithmetic units busy",
    "wait": "latency of instructions",
    "no_instruction": "fetches instructions",
    "branch_resolving": "branches",
    "drain": "stores at the end",
    "imc_miss": "constants",
    "sleeping": "sleeps",
    "dispatch": "dispatch",
}
PLAIN = {
    "us": "gpu__time_duration.sum",
    "bytes": "dram__bytes.sum",
    "waves": "launch__waves_per_multiprocessor",
    "blocks": "launch__grid_size",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
}
SCALES = {"ns": 1e-3, "us": 1, "usecond": 1, "nsecond": 1e-3, "ms": 1e3, "msecond": 1e3,
          "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def run(words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: code {done.returncode}: {done.stdout[-2000:]}{done.stderr}")
    return done.stdout


def launches(scheme, elements):
    """The kernels of STEPS steps: name and metrics of each."""
    metrics = [*PLAIN.values(), *map(STALL.format, REASONS)]
    text = run(["ncu", "--profile-from-start", "off", "--clock-control", "none", "--cache-control",
                "none", "--csv", "--metrics", ",".join(metrics), OPTIONS.program, scheme, elements,
                OPTIONS.ranks, str(STEPS)])
    table = text[text.index('"ID"'):]
    found = {}
    for row in csv.DictReader(io.StringIO(table)):
        value = row["Metric Value"].replace(",", "")
        if re.fullmatch(r"[-+.0-9e]+", value):
            value = float(value) * SCALES.get(row["Metric Unit"], 1)
            found.setdefault(row["ID"], {"name": row["Kernel Name"]})[row["Metric Name"]] = value
    return list(found.values())


def stem(name):
    """take_in_kernel<float, true>(...) and its namespaces become take_in."""
    name = re.sub(r"\(.*", "", name.replace("(anonymous namespace)::", ""))
    name = re.sub(r"<.*", "", name).split("::")[-1].split(" ")[-1]
    return name.removesuffix("_kernel")


def rest(group):
    longest = max(group, key=lambda one: one.get(PLAIN["us"], 0))
    stalls = {text: longest.get(STALL.format(key), 0) for key, text in REASONS.items()}
    words = [max(stalls, key=lambda text: stalls[text])]
    if longest.get(PLAIN["waves"], 1) < 1:
        words.insert(0, f"{longest.get(PLAIN['blocks'], 0):.0f} blocks")
    words.append(f"issues {longest.get(PLAIN['issue'], 0):.0f} % of the time")
    return ", ".join(words)


def table(model, scheme, elements):
    moved = 20 * int(elements)
    milliseconds = float(run([OPTIONS.program, "copy", str(moved)]).split()[0])
    bandwidth = moved / milliseconds * 1e3  # bytes per second
    print(f"\n{scheme}, {model}, {OPTIONS.ranks} workers; "
          f"a copy moves {bandwidth / 1e12:.2f} TB/s\n")
    print("| kernel | calls | us | MB moved | floor, us | share | the rest |")
    print("|---|---:|---:|---:|---:|---:|---|")
    groups = {}
    for one in launches(scheme, elements):
        groups.setdefault(stem(one["name"]), []).append(one)
    rows = []
    for name, group in groups.items():
        micros = sum(one.get(PLAIN["us"], 0) for one in group) / STEPS
        bytes_moved = sum(one.get(PLAIN["bytes"], 0) for one in group) / STEPS
        floor = bytes_moved / bandwidth * 1e6
        rows.append({"model": model, "scheme": scheme, "kernel": name,
                     "calls": len(group) / STEPS, "us": micros, "bytes": bytes_moved,
                     "floor_us": floor, "rest": rest(group)})
        print(f"| {name} | {len(group) / STEPS:g} | {micros:.1f} | {bytes_moved / 1e6:.2f} | "
              f"{floor:.1f} | {100 * floor / micros:.0f} % | {rows[-1]['rest']} |", flush=True)
    total, floor = sum(row["us"] for row in rows), sum(row["floor_us"] for row in rows)
    print(f"| all | | {total:.1f} | {sum(row['bytes'] for row in rows) / 1e6:.1f} | {floor:.1f} | "
          f"{100 * floor / total:.0f} % | |", flush=True)
    return rows


ROWS = []
for SIZE in OPTIONS.sizes.split(","):
    MODEL, _, ELEMENTS = SIZE.partition("=")
    for SCHEME in OPTIONS.schemes:
        ROWS += table(MODEL, SCHEME, ELEMENTS)
if OPTIONS.json:
    with open(OPTIONS.json, "w") as file:
        json.dump(ROWS, file, indent=1)
