#!/usr/bin/env python3
"""train_cuda.py PROGRAM [--cifar DIR] [--model M] [--workers N] [--device D] [--json F]: steps per
second of dense, bf16 and dgc in `thinwire train` on a GPU, without a link and over two emulated
ones. PROGRAM is the `thinwire` command. DIR has CIFAR-10's binary files; without it the images are
synthetic ones of the same shape (speed and bytes are the same, accuracy means nothing). It takes
two minutes.

Gradients are compressed, averaged and applied on the GPU; bytes travel over Gloo between workers
that share it. A run is reported in parts of PART steps. The first two are left out (libraries load,
dgc's thresholds settle), and the median of the others is its time. Buckets are small, so that the
network of 1 MB has several, and the exchange overlaps backward.

Preset cuda leaves the command out. With CLI11, nlohmann-json and gloo's headers (in DIR/include,
their packages in DIR/share/cmake):
    cmake --preset cuda -DTHINWIRE_APPS=ON -DCMAKE_PREFIX_PATH=DIR
    cmake --build --preset cuda --target thinwire_command
"""

import argparse, json, os, subprocess, sys, tempfile
from statistics import median

PARSER = argparse.ArgumentParser()
PARSER.add_argument("program")
PARSER.add_argument("--cifar", metavar="DIR")
PARSER.add_argument("--model", default="resnet20")
PARSER.add_argument("--workers", type=int, default=2)
PARSER.add_argument("--batch", type=int, default=128)
PARSER.add_argument("--parts", type=int, default=8)
PARSER.add_argument("--device", default="cuda")
PARSER.add_argument("--json")
OPTIONS = PARSER.parse_args()
PART = 15
SCHEMES = ["dense", "bf16", "dgc:density=0.001"]
LINKS = ["", "1gbit,0.1ms", "100mbit,1ms"]
DATA = f"cifar10:{OPTIONS.cifar}" if OPTIONS.cifar else "synthetic:3x32x32:10"
TASK = (
    f"--model {OPTIONS.model} --data {DATA} --device {OPTIONS.device} --workers {OPTIONS.workers} "
    f"--batch {OPTIONS.batch} --bucket-mb 0.25 --lr 0.05 --weight-decay 1e-4 "
    f"--steps {PART * OPTIONS.parts} --report-every {PART} --check-every 0"
)


def measure(scheme, link):
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "out.json")
        words = [OPTIONS.program, "train", *TASK.split(), "--scheme", scheme, "--json", out]
        done = subprocess.run(words + (["--link", link] if link else []), capture_output=True,
                              text=True)
        if done.returncode != 0:
            sys.exit(f"{scheme} over {link or 'no link'}: {done.stdout}{done.stderr}")
        with open(out) as file:
            document = json.load(file)
    rows = document["rows"][2:]
    return {
        "scheme": scheme,
        "link": link or "none",
        "compressed_on": document["compressed_on"],
        "steps_per_second": 1 / median(row["seconds_per_step"] for row in rows),
        "compute_seconds": median(row["compute_seconds"] for row in rows),
        "exposed_seconds": median(row["exposed_seconds"] for row in rows),
        "bytes_per_step": rows[-1]["bytes_per_step"],
        "ratio": rows[-1]["ratio"],
        "skipped": document["final"]["skipped"],
        "replicas_identical": document["final"]["replicas_identical"],
        "engine": document["engine"],
    }


RESULTS = []
print(f"thinwire train {TASK}\n")
print("| link | scheme | compressed on | steps/s | against dense | compute, ms | waiting, ms | "
      "bytes/step | ratio |")
print("|---|---|---|---:|---:|---:|---:|---:|---:|")
for link in LINKS:
    for scheme in SCHEMES:
        result = measure(scheme, link)
        RESULTS.append(result)
        dense = next(r for r in RESULTS if r["link"] == result["link"])
        print(f"| {result['link']} | {scheme} | {result['compressed_on']} "
              f"| {result['steps_per_second']:.1f} "
              f"| {result['steps_per_second'] / dense['steps_per_second']:.2f} "
              f"| {1e3 * result['compute_seconds']:.2f} | {1e3 * result['exposed_seconds']:.2f} "
              f"| {result['bytes_per_step']:.0f} | {result['ratio']:.1f} |", flush=True)
if OPTIONS.json:
    with open(OPTIONS.json, "w") as file:
        json.dump({"task": TASK, "rows": RESULTS}, file, indent=1)
