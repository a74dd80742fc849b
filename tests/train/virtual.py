#!/usr/bin/env python3
"""virtual.py: `thinwire train --virtual N`: the bits of `--workers N`, and honest about time.
    virtual.py CASE PROGRAM
CASE: a function below whose name starts with case_, without that prefix
SPDX-License-Identifier: Apache-2.0
"""
import os, signal, sys

from running import *

SAME = ["steps", "loss", "test_loss", "accuracy", "word_error", "bytes_per_step", "ratio",
        "skipped", "checksum"]


def same(flags, first, second):
    for key in SAME:
        if first["final"].get(key) != second["final"].get(key):
            fail(f"{flags}: {key}: {first['final']} and {second['final']}")


def both_ways(flags, ranks):
    """The first half of each run, its checkpoint, and the second half of the other. Returns the
    name of a checkpoint."""
    files = [path("processes"), path("virtual")]
    ways = ["--workers 2", "--virtual 2"]
    halves = [train(f"{flags} {way} --stop 4 --save {file}") for way, file in zip(ways, files)]
    same(flags, *halves)
    for rank in range(ranks):
        bytes_of = [open(f"{file}.rank{rank}", "rb").read() for file in files]
        if bytes_of[0] != bytes_of[1]:
            fail(f"{flags}: the checkpoints of rank {rank} differ")
    wholes = [train(f"{flags} {way} --resume {file}") for way, file in zip(ways, files[::-1])]
    same(flags, *wholes)
    print(f"{halves[1]['final']['checksum']}, then {wholes[1]['final']['checksum']}")
    if wholes[0]["final"]["checksum"] == halves[0]["final"]["checksum"]:
        fail(f"{flags}: the second half did not train")
    return files[0]


def case_virtual():
    """Each rank has a part in all of it: a share of the data, BatchNorm, residuals, a server's, and
    a NaN. The law in tests/train/virtual_test.cc tries all kinds of runs, with threads."""
    flags = ("--model resnet20 --data digits --batch 4 --steps 8 --bucket-mb 0.2 --schedule linear "
             "--partition dirichlet:0.3 --scheme dgc:density=0.05 --exchange server:1 --nan-at 3,1")
    file = both_ways(flags, ranks=3)
    # What processes find when they compare their replicas.
    train(f"{flags} --virtual 2 --stop 4 --lr 0.05 --save {path('other')}")
    os.replace(path("other.rank1"), f"{file}.rank1")
    refused(f"{flags} --virtual 2 --resume {file}", "rank 1 has other weights than rank 0")
    os.remove(f"{file}.rank1")
    refused(f"{flags} --virtual 2 --resume {file}", "rank1", "complete")


def case_late():
    """Delayed averaging, whose workers are threads with weights of their own."""
    flags = ("--model mlp --data digits --steps 8 --lr 0.01 --delay 3 --local-steps 2 "
             "--scheme topk --nan-at 1,1")
    file = both_ways(flags, ranks=2)
    base = "--model mlp --data digits --steps 8 --virtual 2 --delay 2"
    refused(f"{base} --resume {file}", "--scheme topk")
    os.remove(f"{file}.rank1")  # rank 0 finds nothing wrong
    refused(f"{flags} --virtual 2 --resume {file}", "rank1", "complete")
    refused(f"{base} --link 1gbit,1ms", "--link", "use --workers")
    refused(f"{base[:-1]}auto:4", "no latency to measure")
    # A signal to threads that are at different steps.
    flags = "--model mlp --data digits --delay 3 --lr 0.01 --scheme onebit"
    job = start(f"{flags} --virtual 3 --steps 1000000 --report-every 20 --save {path('ended')}")
    for line in job.stdout:
        if line.split()[:1] == ["40"]:
            break
    job.send_signal(signal.SIGINT)
    err = job.communicate(timeout=60)[1]
    if job.returncode != 130:
        fail(f"interrupted: {job.returncode}, {err}")
    goes_on(f"{flags} --virtual 3", err)


def case_estimates():
    """Nothing waits, so no measured time is called that of a step, and no estimate is too good."""
    flags = "--model mlp --data digits --steps 5 --scheme topk"
    plain = train(f"{flags} --virtual 3")
    final = plain["final"]
    if plain["virtual"] != 3 or plain["emulated"] or not final["process_seconds_per_step"] > 0:
        fail(f"not labelled: {plain}")
    linked = train(f"{flags} --virtual 3 --link 1mbit,3ms")
    if linked["final"]["checksum"] != final["checksum"] or linked["emulated"]:
        fail(f"a link changed more than an estimate: {linked}")
    for document, estimated in ((plain, False), (linked, True)):
        for row in document["final"], document["rows"][-1]:
            if {"seconds_per_step", "seconds_total", "exposed_seconds", "wait_seconds"} & row.keys():
                fail(f"a time that nobody has measured: {row}")
            if ("estimated_seconds_per_step" in row) != estimated:
                fail(f"an estimate without a link, or none with one: {row}")
    final = linked["final"]
    parts = ["compute", "encode", "decode", "optimizer", "estimated_link"]
    step = final["estimated_seconds_per_step"]
    print(f"{step} s per step")
    if step < sum(final[f"{part}_seconds"] for part in parts):
        fail(f"too good: {final}")
    # Two messages to each worker: to rank 0 and to the other.
    if final["estimated_link_seconds"] < 2 * 8e-6 * final["bytes_per_step"] / 1 + 0.003:
        fail(f"faster than the link: {final}")
    total = linked["rows"][-1]["estimated_seconds_total"]
    if abs(total - 5 * step) > 1e-9 * total:
        fail(f"{total} s in total: {final}")


def case_clashes():
    refused("--virtual 0", "--virtual: expected a whole number from 1 to 1024, got '0'")
    refused("--virtual 2 --workers 2", "either virtual or processes")
    for engine in ("gloo", "mpi", "nccl"):
        refused(f"--virtual 2 --engine {engine}", f"--engine {engine}", "leave --engine out")
    refused("--virtual 2 --streams", "--streams clash")
    refused(f"--virtual 2 --trace {path('trace.json')}", "--trace", "take turns")
    refused("--virtual 2 --link 1gbit,1ms,jitter=1ms", "cannot be estimated")
    for job in ({"RANK": "0", "WORLD_SIZE": "2"}, {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}):
        done = subprocess.run(command("--virtual 2"), env={**CLEAN, **job}, capture_output=True,
                              text=True)
        if done.returncode != 2 or "belongs to a job of" not in done.stderr:
            fail(f"{job}: {done.returncode}: {done.stderr}")


globals()["case_" + sys.argv[1]]()
