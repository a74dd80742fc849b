#!/usr/bin/env python3
"""train.py: runs `thinwire train` as its users do, and checks what it says and leaves behind.
    train.py CASE PROGRAM [LAUNCHER]
CASE: a function below whose name starts with case_, without that prefix
"""

import glob, json, os, signal, subprocess, sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from launch import MPI
from running import *


def case_trains():
    for scheme in SCHEMES:
        document = train(
            f"--model mlp --data digits --workers 4 --steps 30 --eval-every 10 --scheme {scheme}"
        )
        final, rows = document["final"], document["rows"]
        print(scheme, final)
        keys = [
            "steps",
            "loss",
            "accuracy",
            "bytes_per_step",
            "ratio",
            "seconds_per_step",
            "replicas_identical",
            "skipped",
        ]
        if missing := [key for key in keys if key not in final]:
            fail(f"{scheme}: no {missing} in the JSON file")
        if final["steps"] != 30 or final["skipped"] != 0 or final["replicas_identical"] is not True:
            fail(f"{scheme}: {final}")
        if not rows[-1]["loss"] < rows[0]["loss"]:
            fail(f"{scheme}: the loss did not fall")
        if sum("accuracy" in row for row in rows) != 3:
            fail(f"{scheme}: expected three evaluations")
        if (scheme == "dense") != (abs(final["ratio"] - 1) < 1e-6):
            fail(f"{scheme}: ratio {final['ratio']}")


def case_varies():
    """Non-default settings: precision, accumulation, optimizer, schedule, buckets, a link, a
    language model."""
    one = train(
        "--model mlp --data digits --workers 2 --steps 6 --accumulate 2 --precision bf16 "
        "--nesterov "
        "--weight-decay 1e-4 --clip 1 --schedule cosine --lr-warmup 2 --bucket-mb 0.05 --fuse-mb "
        "0.1 --link 1gbit,1ms"
    )
    if not one["emulated"] or "emulated" not in one["engine"]:
        fail("an emulated link is not labelled")
    if one["rows"][0]["rate"] != 0.05 or not one["rows"][-1]["rate"] < 0.05:
        fail(f"learning rates: {[row['rate'] for row in one['rows']]}")
    text = train(
        "--model lstm --data stdlib --sequence 8 --workers 2 --steps 3 --scheme dgc --nesterov "
        "--clip 0.25"
    )
    if not text["final"]["perplexity"] > 1:
        fail(f"perplexity: {text['final']}")


def case_repeats():
    flags = "--model mlp --data digits --workers 2 --steps 12 --scheme dgc:density=0.01"
    first, second = (train(flags)["final"] for _ in range(2))
    other = train(flags + " --seed 2")["final"]
    if first["checksum"] != second["checksum"] or first["loss"] != second["loss"]:
        fail(f"two runs differ: {first} {second}")
    if first["checksum"] == other["checksum"]:
        fail("another seed changed nothing")


def resumes(scheme, workers, steps, flags):
    flags += f" --data digits --workers {workers} --steps {steps} --schedule linear"
    flags += f" --threads 1 --scheme {scheme}"
    whole = train(flags + " --eval-every 5")["final"]
    first = train(flags + f" --stop {steps // 2} --save {path('state')}")["final"]
    second = train(flags + f" --resume {path('state')}")["final"]
    print(
        f"{scheme}, {workers} workers: {whole['checksum']} at once, {second['checksum']} in two "
        f"halves"
    )
    if (
        first["steps"] != steps // 2
        or second["steps"] != steps
        or first["checksum"] == second["checksum"]
    ):
        fail("the halves did not train")
    if whole["checksum"] != second["checksum"] or whole["test_loss"] != second["test_loss"]:
        fail(f"{scheme}: the resumed run differs: {whole} {second}")


def case_resumes():
    """One scheme for each kind of state. The laws test every scheme's resume, with threads."""
    resumes(
        "dgc:density=0.01", 2, 10, "--model resnet20 --batch 4 --bucket-mb 0.2 --weight-decay 1e-4"
    )
    resumes("powersgd", 2, 10, "--model mlp --bucket-mb 0.2")
    # Adam counts its updates; a skipped step is not one.
    resumes(
        "int8",
        2,
        6,
        "--model mlp --bucket-mb 0.2 --optimizer adamw --weight-decay 0.01 --nan-at 1,0",
    )
    # Shares of unequal size, some of which end within the run.
    resumes("dgc", 2, 40, "--model mlp --batch 16 --partition dirichlet:0.3")
    resumes("onebit", 1, 10, "--model mlp")


def case_hears():
    """Speech: utterances of different lengths, dropout, and its own measure."""
    flags = "--model speech --data tones --batch 2 --workers 2 --steps 4 --threads 1 --scheme dgc"
    whole = train(flags)["final"]
    train(flags + f" --stop 2 --save {path('heard')}")
    second = train(flags + f" --resume {path('heard')}")["final"]
    if not whole["word_error"] >= 0 or {"accuracy", "perplexity"} & whole.keys():
        fail(f"expected a word error rate and no other measure: {whole}")
    if second["checksum"] != whole["checksum"] or second["test_loss"] != whole["test_loss"]:
        fail(f"speech: {whole['checksum']} at once, {second['checksum']} in two halves")
    refused("--model speech --data digits", "'speech' reads speech, but the data is images")
    refused("--model mlp --data tones", "'mlp' reads images, but the data is speech")


def case_exchanges():
    """Split-reduce and servers: they learn, skip and resume like the rest."""
    base = "--model resnet20 --data digits --batch 4 --workers 2 --steps 8 --bucket-mb 0.2"
    for exchange in ("split", "server:1", "server:2,second=topk:density=0.1"):
        flags = f"{base} --scheme dgc:density=0.05 --exchange {exchange} --nan-at 3,1"
        whole = train(flags)["final"]
        if whole["skipped"] != 1 or not whole["replicas_identical"]:
            fail(f"{exchange}: {whole}")
        if exchange == "server:1":  # it keeps the same as the other two
            continue
        train(f"{flags} --stop 5 --save {path('striped')}")
        second = train(f"{flags} --resume {path('striped')}")["final"]
        if second["checksum"] != whole["checksum"]:
            fail(f"{exchange}: {whole['checksum']} at once, {second['checksum']} in two halves")
    refused(
        f"{base} --exchange split",
        "'dense' travels by all-reduce; exchange split needs one that gathers",
    )
    refused(f"{base} --scheme dgc --exchange server:1,second=dgc", "accumulates momentum")
    refused(f"{base} --scheme dgc --exchange ring", "expected auto, split or server:S")


def case_delays():
    """Delayed averaging learns, resumes exactly with messages in flight, and names
    clashing flags."""
    base = "--model mlp --data digits --batch 32 --workers 2 --lr 0.05"
    for flags in (
        "--delay 4",
        "--local-steps 4",
        "--delay 6 --local-steps 2 --scheme dgc:density=0.01 --correction ledger:book=b",
        "--delay 4 --correction pull",
        "--delay 4 --correction published --nesterov --weight-decay 1e-4",
        "--delay 3 --correction none",
        "--delay 4 --optimizer adamw --lr 0.001",
    ):
        flags = (
            f"{base} {flags}"
            if "--optimizer" not in flags
            else f"{base.replace('--lr 0.05', '')} {flags}"
        )
        whole = train(f"{flags} --steps 41 --nan-at 3,1")
        final, rows = whole["final"], whole["rows"]
        if final["skipped"] != 1 or not final["replicas_identical"]:
            fail(f"{flags}: {final}")
        if (
            "none" not in flags and not rows[-1]["loss"] < rows[0]["loss"]
        ):  # it needs a smaller learning rate
            fail(f"{flags}: the loss did not fall")
        if flags.endswith(("--delay 4", "pull", "none")):  # no state that the others lack
            continue
        train(f"{flags} --steps 41 --nan-at 3,1 --stop 20 --save {path('late')}")
        second = train(f"{flags} --steps 41 --resume {path('late')}")["final"]
        if second["checksum"] != final["checksum"]:
            fail(f"{flags}: {final['checksum']} at once, {second['checksum']} in two halves")
    measured = train(f"{base} --steps 60 --delay auto:50 --link inf,2ms")
    if not measured["final"]["replicas_identical"]:
        fail(f"measured delay: {measured['final']}")
    refused(f"{base} --delay soon", "--delay", "auto:MOST")
    refused(
        f"{base} --delay 4 --correction sometimes",
        "--correction",
        "soft, ledger, published, pull or none",
    )
    refused(f"{base} --delay 4 --exchange split --scheme dgc", "--exchange split", "clash")
    refused(
        f"{base} --delay 4 --scheme int8 --optimizer adam --lr 0.001".replace("--lr 0.05", ""),
        "second moments",
        "SGD",
    )
    refused(
        f"{base} --delay 4 --correction published --optimizer adam --lr 0.001".replace(
            "--lr 0.05", ""
        ),
        "--optimizer sgd",
    )
    refused(f"{base} --delay 4 --scheme signum", "signum", "vote")
    refused(f"{base} --delay 4 --scheme powersgd", "only one message")
    job = Running("--timeout 3 --delay 10 --lr 0.01")
    os.kill(job.workers[2], signal.SIGSTOP)
    job.ended(1, "rank 2")


def case_waits():
    """All waiting counts: no worker sends more per second than the link carries, whatever else a
    run stops for. This tests every method; case_schemes tests every scheme."""
    base = f"--model mlp --data digits --workers 2 --steps 16 --lr 0.01 --link 50mbit,2ms"
    methods = [
        "--scheme dense",
        "--scheme powersgd",
        "--scheme dgc --exchange split",
        "--local-steps 3",
        "--scheme onebit --delay 5 --local-steps 2",
    ]
    for correction in ("soft", "ledger", "published", "pull", "none"):
        methods.append(f"--delay 5 --correction {correction}")
    for number, flags in enumerate(methods):
        stops = ("--eval-every 3", f"--save-every 3 --save {path('often')}")[number % 2]
        final = train(f"{base} {flags} {stops}")["final"]
        pace = 8e-6 * final["bytes_per_step"] / final["seconds_per_step"]
        print(f"{flags} {stops}: {pace:.1f} Mbit/s")
        if not 0 < pace < 50:
            fail(f"{flags} {stops}: {pace:.1f} Mbit/s over a link of 50")


def case_schemes():
    """The same law for every scheme of the registry. Each gets a link on which one step takes about
    40 ms, most of its time; a clock that misses the wait breaks the law."""
    out = path("schemes.json")
    subprocess.run([PROGRAM, *"inspect --model mlp --data digits --steps 2 --json".split(), out],
                   check=True, stdout=subprocess.DEVNULL)
    with open(out) as file:
        rows = json.load(file)["rows"]
    if len(rows) < 10:
        fail(f"the registry has only {rows}")
    for row in rows:
        scheme, rate = row["scheme"], 8e-6 * row["bytes"] / 0.04
        final = train(f"--model mlp --data digits --workers 2 --steps 4 --scheme {scheme} "
                      f"--link {rate:.6f}mbit,0ms")["final"]
        sent = 8e-6 * final["bytes_per_step"]
        pace = sent / final["seconds_per_step"]
        print(f"{scheme}: {pace:.3f} Mbit/s over a link of {rate:.3f}")
        if not 0 < pace < rate:
            fail(f"{scheme}: {pace} Mbit/s over a link of {rate}")
        if sent / rate < 0.01:
            fail(f"{scheme}: sends {sent} Mbit per step; inspect said {8e-6 * row['bytes']}")


def case_traces():
    file = path("trace.json")
    train(
        f"--model lstm --data stdlib --sequence 16 --workers 2 --steps 6 --bucket-mb 0.5 --trace "
        f"{file}"
    )
    with open(file) as trace:
        events = [event for event in json.load(trace)["traceEvents"] if event["ph"] == "X"]
    for name in ("forward", "backward", "encode", "exchange", "decode", "update"):
        if not any(event["name"] == name for event in events):
            fail(f"no {name} in the trace")
    backward = {e["args"]["step"]: e for e in events if e["name"] == "backward"}
    inside = 0
    for event in events:
        around = backward[event["args"]["step"]]
        inside += (
            event["name"] == "exchange"
            and around["ts"] < event["ts"] < around["ts"] + around["dur"]
        )
    print(f"{inside} exchanges began inside backward")
    if inside == 0:
        fail("no exchange inside backward: nothing overlaps")


def join_two(flags, variables=lambda rank: {}):
    """How two such processes ended."""
    both = start_two(flags, variables)
    outputs = [one.communicate(timeout=120)[0] for one in both]
    if (
        any(one.returncode != 0 for one in both)
        or "2 workers" not in outputs[0]
        or outputs[1] != ""
    ):
        fail(f"joined job: {outputs}")
    with open(path("joined0.json")) as file:
        return json.load(file)["final"]


def case_joins():
    flags = command("--model mlp --data digits --steps 5")
    joined = join_two("--model mlp --data digits --steps 5")["checksum"]
    if joined != train("--model mlp --data digits --steps 5 --workers 2")["final"]["checksum"]:
        fail("a joined job trains otherwise than one of our own")
    # A signal to one rank stops both, with messages in flight.
    late = "--model mlp --data digits --delay 6 --lr 0.01 --link inf,2ms --scheme onebit"
    both = start_two(f"{late} --steps 1000000 --report-every 20 --save {path('state')}")
    for line in both[0].stdout:
        if line.split()[:1] == ["40"]:
            break
    both[1].send_signal(signal.SIGTERM)
    ends = [one.communicate(timeout=120) for one in both]
    if [one.returncode for one in both] != [130, 130] or ends[1][1] != "":
        fail(f"interrupted: {[one.returncode for one in both]}, {ends}")
    goes_on(f"{late} --workers 2", ends[0][1])
    for env, part in (
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "scontrol"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "--engine mpi"),
    ):
        done = subprocess.run(flags, env={**CLEAN, **env}, capture_output=True, text=True)
        if done.returncode != 2 or part not in done.stderr:
            fail(f"{env}: {done.returncode}, {done.stderr}")
    done = subprocess.run(
        flags + ["--workers", "3"],
        env={**CLEAN, "RANK": "0", "WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
    )
    if done.returncode != 2 or "has 2 workers" not in done.stderr:
        fail(f"--workers in a job of 2: {done.stderr}")


def case_streams():
    """What a GPU does in streams, on the CPU and over processes: the bits of the host's way."""
    common = "--model mlp --data digits --workers 2 --steps 8 --nan-at 3,1 --link 1gbit,0.1ms"
    for flags in ("--scheme dgc:density=0.01 --weight-decay 1e-3",
                  "--scheme dense --optimizer adam --lr 0.001 --delay 3 --clip 1"):
        host, streams = train(f"{common} {flags}"), train(f"{common} {flags} --streams")
        for key in ("checksum", "loss", "skipped", "bytes_per_step", "ratio"):
            if host["final"][key] != streams["final"][key]:
                fail(f"{key}: {host['final']} in streams {streams['final']}")
        if host["final"]["skipped"] != 1 or "encode_seconds" in streams["final"]:
            fail(f"{streams['final']}")


def joins_under(launcher, flags):
    """A few steps as two workers of a real launcher, which trains as our own job does."""
    out = path("launched.json")
    command_line = launcher + command(f"--model mlp --data digits --steps 4 --json {out} {flags}")
    done = subprocess.run(
        command_line, env={**CLEAN, **MPI}, capture_output=True, text=True, timeout=200
    )
    if done.returncode != 0 or "2 workers" not in done.stdout:
        fail(f"{launcher[0]}: code {done.returncode}: {done.stdout}{done.stderr}")
    with open(out) as file:
        joined = json.load(file)["final"]
    own = train("--model mlp --data digits --steps 4 --workers 2")["final"]
    print(f"{launcher[0]}: {joined['checksum']}, by ourselves: {own['checksum']}")
    if joined["steps"] != 4 or joined["checksum"] != own["checksum"]:
        fail(f"under {launcher[0]} it trains otherwise")


def case_torchrun():
    joins_under([LAUNCHER, "--standalone", "--nproc-per-node", "2", "--no-python"], "")


def case_mpirun():
    joins_under([LAUNCHER, "-n", "2"], "--engine mpi")


def case_bench():
    """`thinwire bench step`: both loops run, and the ratio is reported."""
    out = path("bench.json")
    line = [
        PROGRAM,
        "bench",
        "step",
        "--batch",
        "8",
        "--workers",
        "2",
        "--steps",
        "2",
        "--pairs",
        "3",
        "--json",
        out,
    ]
    done = subprocess.run(line, env=CLEAN, capture_output=True, text=True, timeout=100)
    if done.returncode != 0 or "ratio" not in done.stdout:
        fail(f"bench step: code {done.returncode}: {done.stdout}{done.stderr}")
    with open(out) as file:
        row = json.load(file)["rows"][0]
    if (
        row["workers"] != 2
        or row["pairs"] != 3
        or not row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    ):
        fail(f"bench step: {row}")
    done = subprocess.run(line[:3] + ["--workers", "1"], env=CLEAN, capture_output=True, text=True)
    if done.returncode != 2 or "--workers 2" not in done.stderr:
        fail(f"bench step with one worker: {done.returncode}, {done.stderr}")


globals()["case_" + sys.argv[1]]()
