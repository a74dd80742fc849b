#!/usr/bin/env python3
"""cuda.py: `thinwire train --device cuda` on a machine with a GPU: learns as on the CPU, skips as
there, resumes exactly, continues checkpoints of the CPU and lends it its own; Gloo, NCCL and an
emulated link give the same bits.
    cuda.py cuda PROGRAM
Needs no data. The runs of a part are started together: they take a minute in all.
SPDX-License-Identifier: Apache-2.0
"""

import itertools, json, socket, subprocess, sys
from concurrent.futures import ThreadPoolExecutor

from running import CLEAN, command, fail, path

TASK = "--model mlp --data synthetic:1x8x8:10 --batch 32 --steps 40 --report-every 1"
SCHEMES = ["dense", "fp16", "bf16", "topk:density=0.01", "dgc:density=0.01,warmup=8"]
NUMBERS = itertools.count()


def document(flags, env=CLEAN):
    """A run's own words and its JSON document."""
    out = path(f"{next(NUMBERS)}.json")
    words = [*command(flags), "--json", out]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=200)
    if done.returncode != 0:
        fail(f"{flags}: code {done.returncode}: {done.stdout}{done.stderr}")
    if env.get("RANK", "0") != "0":
        return None
    with open(out) as file:
        return json.load(file) | {"said": done.stdout}


def together(*jobs):
    """The documents of several commands, or of several calls."""
    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(lambda job: job() if callable(job) else document(job), jobs))


def over_nccl(flags):
    """Two ranks that share a GPU, which NCCL allows to ranks of different machines only."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def rank(number):
        return document(flags + " --device cuda --engine nccl", CLEAN | {
            "RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "NCCL_HOSTID": f"rank{number}", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1",
            "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"})

    return together(lambda: rank(0), lambda: rank(1))[0]


def expect_close(what, one, other, first=10):
    """Losses: nearly the same at first; later rounding errors grow."""
    losses = [[row["loss"] for row in run["rows"]] for run in (one, other)]
    apart = [abs(a - b) / (abs(a) + 1e-3) for a, b in zip(*losses)]
    print(f"{what}: losses apart by {max(apart[:first]):.1e} at first, {max(apart):.1e} at most")
    if max(apart[:first]) > 1e-3 or max(apart) > 0.3:
        fail(f"{what}: {losses}")


def expect_same(what, *runs):
    checksums = [run["final"]["checksum"] for run in runs]
    print(f"{what}: weights {checksums}")
    if len(set(checksums)) != 1:
        fail(f"{what}: other weights: {[run['final'] for run in runs]}")


def learns():
    """As on the CPU, whatever the scheme; over Gloo, NCCL and a link with the same bits."""
    for scheme in SCHEMES:
        flags = f"{TASK} --scheme {scheme} --workers 2"
        nccl = f"{TASK} --scheme {scheme}"
        cpu, gpu, linked, direct = together(
            flags, f"{flags} --device cuda", f"{flags} --device cuda --link 1gbit,0.1ms",
            lambda flags=nccl: over_nccl(flags))
        if gpu["compressed_on"] != "cuda" or "update on the GPU" not in gpu["said"]:
            fail(f"{scheme}: not compressed on the GPU: {gpu['said']}")
        if "nccl" not in direct["engine"] or "emulated" not in linked["engine"]:
            fail(f"{scheme}: engines {direct['engine']}, {linked['engine']}")
        for key in ("bytes_per_step", "skipped"):
            if abs(cpu["final"][key] - gpu["final"][key]) > 0.1 * cpu["final"][key]:
                fail(f"{scheme}, {key}: {cpu['final']}, on the GPU {gpu['final']}")
        expect_close(f"{scheme}, CPU and GPU", cpu, gpu)
        expect_same(f"{scheme}, Gloo, a link, NCCL", gpu, linked, direct)


def optimizes():
    """The other optimizers, clipping, accumulation, one worker."""
    for flags in ("--optimizer adamw --weight-decay 0.1 --scheme bf16",
                  "--nesterov --weight-decay 1e-3 --clip 0.5",
                  "--scheme dgc:density=0.05 --nesterov --weight-decay 1e-3 --clip 0.5"):
        flags = f"{TASK} --accumulate 2 {flags}"
        expect_close(flags, *together(flags, flags + " --device cuda"))


def skips():
    for run in together(*(f"{TASK} --workers 2 --nan-at 3,1 --device cuda --scheme {scheme}"
                          for scheme in SCHEMES)):
        if run["final"]["skipped"] != 1:
            fail(f"a NaN was not skipped: {run['final']}")


def resumes():
    """Exactly on the GPU, closely on another device."""
    task = "--model resnet20 --data synthetic --batch 8 --steps 8 --device cuda --workers 2"
    for number, more in enumerate(("--scheme dgc:density=0.01", "--precision bf16")):
        state = path(f"exact{number}")
        whole, _ = together(f"{task} {more}", f"{task} {more} --stop 4 --save {state}")
        expect_same(f"resumed, {more}", whole, document(f"{task} {more} --resume {state}"))
    flags = f"{TASK} --workers 2 --scheme dgc:density=0.05 --weight-decay 1e-3"
    there = flags + " --device cuda"
    gpu, cpu = path("gpu"), path("cpu")
    whole, *_ = together(flags, f"{flags} --stop 4 --save {cpu}", f"{there} --stop 4 --save {gpu}")
    whole["rows"] = whole["rows"][4:]
    on_cpu, on_gpu = together(f"{flags} --resume {gpu}", f"{there} --resume {cpu}")
    expect_close("a checkpoint of the GPU on the CPU", whole, on_cpu, 6)
    expect_close("a checkpoint of the CPU on the GPU", whole, on_gpu, 6)


def explains():
    """What goes through the host says so."""
    for flags, why in (("--scheme atomo", "scheme atomo: "), ("--delay auto:4", "a measured delay"),
                       ("--correction published --delay 2", "the published correction")):
        run = document(f"{TASK} --workers 2 --device cuda --lr 0.01 {flags}")
        if run["compressed_on"] != "cpu" or f"on the CPU: {why}" not in run["said"]:
            fail(f"{flags}: {run['said']}")


def virtual():
    """The bits of processes, which compress on the GPU: its kernels have the bits of the CPU's.
    BatchNorm, a skipped step and a checkpoint too. Recorded passes of all workers run at once, and
    one after the other where batches are accumulated."""
    task = "--model resnet20 --data synthetic --batch 4 --steps 6 --nan-at 2,1 --device cuda"
    for scheme in (*SCHEMES, "onebit", "qsgd"):
        flags, state = f"{task} --scheme {scheme}", path(scheme.split(":")[0] + ".virtual")
        if scheme == "onebit":
            flags += " --accumulate 2 --precision bf16"
        processes, whole, half = together(f"{flags} --workers 3", f"{flags} --virtual 3",
                                          f"{flags} --virtual 3 --stop 4 --save {state}")
        if whole["compressed_on"] != "cpu" or half["final"]["skipped"] != 1:
            fail(f"{scheme}: {whole['said']}, {half['final']}")
        resumed = document(f"{flags} --virtual 3 --resume {state}")
        expect_same(f"{scheme}, virtual workers", processes, whole, resumed)
    late = f"{TASK} --device cuda --delay 2 --local-steps 2 --lr 0.05"
    expect_same("delayed, virtual workers",
                *together(f"{late} --workers 3", f"{late} --virtual 3"))


for part in (learns, optimizes, skips, resumes, explains, virtual):
    part()
