#!/usr/bin/env python3
"""train_cuda.py PROGRAM [--cifar DIR [--train STEPS]] [--model M] [--workers N] [--device D]
[--json F]: steps per second of dense, bf16 and dgc in `thinwire train` on a GPU, without a link and
over two emulated ones. PROGRAM is the `thinwire` command. DIR has CIFAR-10's binary files; without
it the images are synthetic ones of the same shape (speed and bytes are the same, accuracy means
nothing). It takes two minutes.

With --train each scheme also trains that long, all at a time and without a link, since a link
changes no bits: the second table has the accuracy on all test images, and the time that the same
steps would take over each link at the speeds of the first.

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
from concurrent.futures import ThreadPoolExecutor
from statistics import median

PARSER = argparse.ArgumentParser()
PARSER.add_argument("program")
PARSER.add_argument("--cifar", metavar="DIR")
PARSER.add_argument("--train", metavar="STEPS", type=int)
PARSER.add_argument("--lr", default="0.1")
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
COMMON = (
    f"--model {OPTIONS.model} --data {DATA} --device {OPTIONS.device} --workers {OPTIONS.workers} "
    f"--batch {OPTIONS.batch} --bucket-mb 0.25 --weight-decay 1e-4 --check-every 0"
)
TASK = f"{COMMON} --lr 0.05 --steps {PART * OPTIONS.parts} --report-every {PART}"
TRAINING = (
    f"{COMMON} --lr {OPTIONS.lr} --steps {OPTIONS.train} --schedule cosine --lr-warmup 40"
)


def document_of(task, scheme, link=""):
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "out.json")
        words = [OPTIONS.program, "train", *task.split(), "--scheme", scheme, "--json", out]
        done = subprocess.run(words + (["--link", link] if link else []), capture_output=True,
                              text=True)
        if done.returncode != 0:
            sys.exit(f"{scheme} over {link or 'no link'}: {done.stdout}{done.stderr}")
        with open(out) as file:
            return json.load(file)


def measure(scheme, link):
    document = document_of(TASK, scheme, link)
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


def trained(scheme):
    """dgc warms up over the first quarter."""
    chosen = f"{scheme},warmup={OPTIONS.train // 4}" if scheme.startswith("dgc") else scheme
    final = document_of(TRAINING, chosen)["final"]
    return {"scheme": chosen, "steps": final["steps"]} | {
        key: final[key] for key in ("accuracy", "skipped", "replicas_identical")}


def train_all():
    print(f"\nthinwire train {TRAINING}\n")
    print("| scheme | steps | accuracy | " + " | ".join(
        f"{link or 'no link'}, s" for link in LINKS) + " |")
    print("|---|---:|---:|" + "---:|" * len(LINKS))
    with ThreadPoolExecutor(len(SCHEMES)) as pool:
        for plain, result in zip(SCHEMES, pool.map(trained, SCHEMES)):
            RESULTS.append(result)
            speeds = [r["steps_per_second"] for r in RESULTS
                      if r["scheme"] == plain and "link" in r]
            print(f"| {result['scheme']} | {result['steps']} | {100 * result['accuracy']:.2f} % | "
                  + " | ".join(f"{result['steps'] / speed:.1f}" for speed in speeds) + " |",
                  flush=True)


if OPTIONS.train:
    train_all()
if OPTIONS.json:
    with open(OPTIONS.json, "w") as file:
        json.dump({"task": TASK, "rows": RESULTS}, file, indent=1)
