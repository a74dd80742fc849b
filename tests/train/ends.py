#!/usr/bin/env python3
"""ends.py: how `thinwire train` ends before its time, and that nothing is lost: it is refused, it
fails, a worker dies, somebody presses Ctrl-C.
    ends.py CASE PROGRAM [without-cuda | MPIRUN]
CASE: a function below whose name starts with case_, without that prefix
SPDX-License-Identifier: Apache-2.0
"""
import glob, json, os, signal, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from launch import MPI
from running import *


def case_refuses():
    refused("--wings", "--wings", "see thinwire train --help")
    refused("--modle mlp", "did you mean '--model'?")
    for flag in ("lr", "momentum", "weight-decay", "clip", "epochs", "bucket-mb", "fuse-mb",
                 "timeout", "beta1", "beta2", "epsilon"):
        refused(f"--{flag} nan", f"--{flag}: expected a ", "got 'nan'")
    for flag in ("lr", "weight-decay", "clip", "epochs"):
        refused(f"--{flag} inf", f"--{flag}: expected a finite number", "got 'inf'")
    refused("--link nan,1ms", "--link", "nan")
    refused("--partition dirichlet:nan", "--partition", "nan")
    refused("--steps -1", "--steps: expected a whole number, 1 or more, got '-1'")
    refused("--batch 0", "--batch")
    refused("--steps 3 --epochs 2", "--epochs")
    refused("--workers 0", "--workers")
    refused("--precision f8", "--precision")
    refused("--engine carrier-pigeon", "--engine")
    refused("--schedule sometimes", "--schedule", "'sometimes'", "cosine")
    refused("--schedule step:3,2", "--schedule")
    refused("--link thin", "--link", "thin")
    refused("--partition some", "--partition", "'some'", "dirichlet:ALPHA")
    refused("--partition dirichlet:0.5 --data stdlib --model lstm", "have none", "contiguous")
    refused("--scheme zip", "zip")
    refused("--scheme dgc:colour=red", "colour")
    refused("--scheme dgc:momentum=0.5 --momentum 0.9", "--momentum", "contradicts")
    refused("--optimizer adma", "--optimizer: expected sgd, adam or adamw, got 'adma'",
            "did you mean 'adam'?")
    refused("--optimizer adam --momentum 0.9", "--optimizer adam", "no --momentum")
    refused("--optimizer adamw --nesterov", "--optimizer adamw", "no --nesterov")
    refused("--beta2 0.99", "--beta2", "--optimizer adam")
    refused("--optimizer adam --beta1 1", "--beta1")
    refused("--optimizer adam --epsilon 0", "--epsilon")
    for scheme in ("dgc", "csc", "int8:memory=momentum"):
        refused(f"--optimizer adam --scheme {scheme}", scheme, "momentum of a momentum")
    refused("--optimizer adamw --scheme signum", "signum", "vote")
    refused("--save-every 3", "--save FILE")
    for flag in ("save", "json", "trace"):
        refused(f"--{flag} {path('no/such/folder')}", f"--{flag}: there is no folder")
    refused(f"--save {SCRATCH.name}", "--save", "folder")
    refused("--data digit", "did you mean 'digits'?")
    for workers in (1, 2):
        refused(f"--model abacus --workers {workers}", "abacus")
    refused(f"--data cifar10:{path('nowhere')} --model resnet20 --workers 1", "nowhere")
    refused(f"--data text:{path('nowhere.txt')} --model lstm --workers 2", "nowhere.txt")
    refused("--data digits --batch 100000 --workers 2", "--batch 100000", "digits has")
    refused(f"--resume {path('nothing')} --workers 2", "there is no file", "nothing.rank0")
    refused("--engine mpi --workers 2", "mpirun")
    refused("--device abacus", "--device")
    if LAUNCHER == "without-cuda":
        refused("--device cuda --workers 1", "--device cuda", "without CUDA")
        refused("--engine nccl --workers 2", "--engine nccl", "without CUDA")


def case_checkpoints():
    base = f"--model mlp --data digits --steps 4 --seed 3"
    train(f"{base} --workers 2 --stop 2 --save {path('state')}")
    refused(f"{base} --workers 4 --resume {path('state')}", "--workers 2", "this run has 4")
    refused(f"{base} --workers 1 --resume {path('state')}", "--workers 2", "this run has 1")
    for flag, saved, given in (("scheme", "dense", "dgc"), ("optimizer", "sgd", "adam"),
                               ("partition", "iid", "contiguous")):
        refused(f"{base} --workers 2 --{flag} {given} --resume {path('state')}",
                f"--{flag} {saved}", f"this run has {given}")
    refused(f"{base} --workers 2 --stop 2 --resume {path('state')}", "step 2")
    file = path("state.rank1")
    whole = open(file, "rb").read()
    changed = whole[:100] + b"!" + whole[101:]
    for damaged in (whole[: len(whole) // 2], b"", changed, b"not a state at all"):
        open(file, "wb").write(damaged)
        refused(f"{base} --workers 2 --resume {path('state')}", "state.rank1")
    os.remove(file)
    refused(f"{base} --workers 2 --resume {path('state')}", "state.rank1", "complete")
    open(file, "wb").write(whole)
    first = path("state.rank0")
    os.rename(first, path("aside"))
    open(first, "wb").write(whole)
    refused(f"{base} --workers 2 --resume {path('state')}",
            "state.rank0' is the checkpoint of rank 1, expected that of rank 0")
    os.replace(path("aside"), first)
    train(f"{base} --workers 2 --resume {path('state')}")
    if left := glob.glob(path("*.next")) + glob.glob(path("*.new")):
        fail(f"files left behind: {left}")


def case_skips():
    for scheme in SCHEMES:
        flags = f"--model mlp --data digits --workers 2 --steps 10 --scheme {scheme}"
        final = train(flags + " --nan-at 3,1")["final"]
        if final["skipped"] != 1 or not final["replicas_identical"] or final["loss"] is None:
            fail(f"{scheme}: {final}")
    for method in ("--scheme dense", "--delay 2"):
        failed(f"--workers 2 --steps 30 --lr 1e38 {method}", "of 30 steps were skipped",
               "lower --lr")


def case_swallows():
    """A file that cannot be written at the end is an error; the result and other files exist."""
    os.mkdir(path("state.rank0"))
    failed(f"--workers 2 --steps 4 --save {path('state')} --json {path('rows.json')}",
           "state.rank0")
    with open(path("rows.json")) as file:
        if json.load(file)["final"]["steps"] != 4:
            fail("no JSON")
    failed(f"--workers 2 --steps 4 --json /dev/full --trace {path('trace.json')}",
           "cannot write '/dev/full'")
    with open(path("trace.json")) as file:
        json.load(file)


def case_killed():
    for rank in (2, 0):
        job = Running()
        os.kill(job.workers[rank], signal.SIGKILL)
        job.ended(1, f"rank {rank}", "signal 9")


def case_stopped():
    job = Running("--timeout 3")
    os.kill(job.workers[0], signal.SIGSTOP)  # it holds the store; case_delays stops another rank
    job.ended(1, "rank 0")


def case_interrupted():
    flags = f"--scheme dgc:density=0.01 --save {path('state')} --json {path('rows.json')}"
    job = Running(flags)
    job.process.send_signal(signal.SIGINT)  # only to the parent
    err = job.ended(130, "saving a checkpoint", "--resume")
    with open(path("rows.json")) as file:
        if not json.load(file)["final"]["steps"] >= 40:
            fail("no result of the interrupted training")
    goes_on("--model mlp --data digits --workers 3 --scheme dgc:density=0.01", err)
    alone = start("--model mlp --data digits --steps 1000000 --report-every 20 --save "
                  + path("alone"))
    while alone.stdout.readline().split()[:1] != ["20"]:
        pass
    alone.terminate()
    _, err = alone.communicate(timeout=60)
    said = f"the checkpoint is '{path('alone')}.rank0'; to continue" in err
    if alone.returncode != 130 or not said or not os.path.exists(path("alone.rank0")):
        fail(f"one worker: {alone.returncode}, {err}")
    job = Running(f"--save {path('state')}")
    os.kill(job.workers[1], signal.SIGSTOP)  # so that the ranks cannot agree
    for _ in range(2):
        job.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    job.ended(130, "interrupted twice")
    job = Running()
    for pid in [job.process.pid] + list(job.workers.values()):  # like a terminal
        os.kill(pid, signal.SIGINT)
    job.ended(130, "interrupted; all workers were ended", "--save FILE")
    job = Running()
    job.process.stdout.close()  # like `| head`
    job.ended(1, "standard output")
    job = Running()
    job.process.kill()
    time.sleep(2)
    if any(alive(pid) for pid in job.workers.values()):
        fail("workers outlive the process that started them")


def under_mpirun(method, seconds, name, to_one=False):
    """A job of three ranks that gets a signal. Resumes it, and returns how it ended.
    After Ctrl-C mpirun waits `seconds` before SIGTERM, and again before SIGKILL; at most
    5 seconds in total."""
    how = dict(env={**CLEAN, **MPI, "OMPI_MCA_odls_base_sigkill_timeout": str(seconds)},
               launcher=[LAUNCHER, "-n", "3"])
    flags = f"--model mlp --data digits --engine mpi {method}"
    job = start(f"{flags} --steps 1000000 --report-every 20 --save {path('mpi')} "
                f"--json {path('mpi.json')}", **how)
    for line in job.stdout:
        if line.split()[:1] == ["40"]:
            break
    ranks = workers_of(job.pid)
    os.kill(ranks[-1] if to_one else job.pid, name)
    _, err = job.communicate(timeout=60)
    print(f"{name.name}: code {job.returncode}: {err}")
    while any(alive(pid) for pid in ranks):  # mpirun does not wait for the ranks that it kills
        time.sleep(0.1)
    if not os.path.exists(path("mpi.json")):
        fail(f"{name.name}: no result of the interrupted training: {err}")
    with open(path("mpi.json")) as file:
        goes_on_from(path("mpi"), json.load(file)["final"]["steps"], 1000000, flags, **how)
    for file in glob.glob(path("mpi*")):
        os.remove(file)
    return job.returncode, err


def case_mpi():
    """Under mpirun a signal leaves a checkpoint of one step too: a signal that mpirun forwards,
    one to a single rank with messages in flight, and Ctrl-C, after which nobody may be left to
    print the last message."""
    late = "--delay 6 --lr 0.01 --link inf,2ms --scheme onebit"
    for code, err in (under_mpirun("--scheme dgc:density=0.01", 1, signal.SIGUSR1),
                      under_mpirun(late, 1, signal.SIGTERM, to_one=True)):
        if code != 130 or f"--resume {path('mpi')}" not in err:
            fail(f"code {code}: {err}")
    under_mpirun("--scheme powersgd", 2, signal.SIGINT)


globals()["case_" + sys.argv[1]]()
