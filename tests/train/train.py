#!/usr/bin/env python3
"""train.py: runs `thinwire train` as its users do, and checks what it says and leaves behind.
    train.py CASE PROGRAM [LAUNCHER]      CASE: a function below whose name starts with case_, without that prefix
"""
import glob, json, os, re, signal, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from launch import MPI

PROGRAM, LAUNCHER = (sys.argv + [""])[2:4]
SCRATCH = tempfile.TemporaryDirectory()
SCHEMES = ["dense", "topk:density=0.01", "dgc:density=0.01,warmup=8"]
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD_SIZE", "OMPI_COMM_", "PMI_", "SLURM_"))}


def path(name):
    return os.path.join(SCRATCH.name, name)


def fail(text):
    sys.exit(f"train.py: {text}")


def command(flags):
    batch = [] if "--batch" in flags else ["--batch", "8"]
    return [PROGRAM, "train"] + batch + flags.split()


def train(flags, env=None):
    """Runs to the end; the JSON document."""
    out = path("out.json")
    done = subprocess.run(command(flags) + ["--json", out], env=env or CLEAN, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{flags}: code {done.returncode}: {done.stderr}")
    with open(out) as file:
        return json.load(file)


def refused(flags, *parts):
    done = subprocess.run(command(flags), env=CLEAN, capture_output=True, text=True, timeout=60)
    if done.returncode != 2:
        fail(f"{flags}: expected code 2, got {done.returncode}: {done.stdout}{done.stderr}")
    if not done.stderr.startswith("thinwire: "):
        fail(f"{flags}: expected one sentence, got: {done.stderr}")
    for part in parts:
        if part not in done.stderr:
            fail(f"{flags}: no '{part}' in: {done.stderr}")
    print("refused:", done.stderr.strip())


def workers_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def rank_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry).get(b"RANK")


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Running:
    """A long training with 3 workers, already under way."""

    def __init__(self, flags=""):
        flags = f"--model mlp --data digits --workers 3 --steps 1000000 --report-every 20 {flags}"
        self.process = subprocess.Popen(command(flags), env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if line.split()[:1] == ["40"]:
                break
        else:
            fail(f"did not come to step 40: {self.process.stderr.read()}")
        self.workers = {int(rank_of(pid)): pid for pid in workers_of(self.process.pid)}
        if sorted(self.workers) != [0, 1, 2]:
            fail(f"expected 3 workers, got {self.workers}")

    def ended(self, code, *parts):
        """The limit is for a job that hangs: on a busy machine the kernel alone may take ten seconds to take down a process."""
        start, seconds = time.time(), 60
        try:
            _, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            fail(f"still running after {seconds} s")
        print(f"ended after {time.time() - start:.1f} s: {err.strip()}")
        if self.process.returncode != code:
            fail(f"expected code {code}, got {self.process.returncode}")
        for part in parts:
            if part not in err:
                fail(f"no '{part}' in: {err}")
        if any(alive(pid) for pid in self.workers.values()):
            fail("workers are left behind")
        return err


def case_trains():
    for scheme in SCHEMES:
        document = train(f"--model mlp --data digits --workers 4 --steps 30 --eval-every 10 --scheme {scheme}")
        final, rows = document["final"], document["rows"]
        print(scheme, final)
        keys = ["steps", "loss", "accuracy", "bytes_per_step", "ratio", "seconds_per_step", "replicas_identical", "skipped"]
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
    """What is not the default: precision, accumulation, optimizer, schedule, buckets, a link, a language."""
    one = train("--model mlp --data digits --workers 2 --steps 6 --accumulate 2 --precision bf16 --nesterov "
                "--weight-decay 1e-4 --clip 1 --schedule cosine --lr-warmup 2 --bucket-mb 0.05 --fuse-mb 0.1 --link 1gbit,1ms")
    if not one["emulated"] or "emulated" not in one["engine"]:
        fail("an emulated link is not labelled")
    if one["rows"][0]["rate"] != 0.05 or not one["rows"][-1]["rate"] < 0.05:
        fail(f"learning rates: {[row['rate'] for row in one['rows']]}")
    text = train("--model lstm --data stdlib --sequence 8 --workers 2 --steps 3 --scheme dgc --nesterov --clip 0.25")
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
    flags += f" --data digits --workers {workers} --steps {steps} --schedule linear --threads 1 --scheme {scheme}"
    whole = train(flags + " --eval-every 5")["final"]
    first = train(flags + f" --stop {steps // 2} --save {path('state')}")["final"]
    second = train(flags + f" --resume {path('state')}")["final"]
    print(f"{scheme}, {workers} workers: {whole['checksum']} at once, {second['checksum']} in two halves")
    if first["steps"] != steps // 2 or second["steps"] != steps or first["checksum"] == second["checksum"]:
        fail("the halves did not train")
    if whole["checksum"] != second["checksum"] or whole["test_loss"] != second["test_loss"]:
        fail(f"{scheme}: the resumed run differs: {whole} {second}")


def case_resumes():
    """One for each kind of state; every scheme resumes as threads, in the laws."""
    resumes("dgc:density=0.01", 4, 10, "--model resnet20 --batch 4 --bucket-mb 0.2 --weight-decay 1e-4")
    resumes("powersgd", 2, 10, "--model mlp --bucket-mb 0.2")
    # Adam counts its updates, of which a skipped step is none.
    resumes("int8", 2, 6, "--model mlp --bucket-mb 0.2 --optimizer adamw --weight-decay 0.01 --nan-at 1,0")
    # Shares of unequal size, of which some end within the run.
    resumes("dgc", 2, 40, "--model mlp --batch 16 --partition dirichlet:0.3")
    resumes("onebit", 1, 10, "--model mlp")


def case_exchanges():
    """Split-reduce and servers: they learn, skip and resume as the rest does."""
    base = "--model resnet20 --data digits --batch 4 --workers 2 --steps 8 --bucket-mb 0.2"
    for exchange in ("split", "server:1", "server:2,second=topk:density=0.1"):
        flags = f"{base} --scheme dgc:density=0.05 --exchange {exchange} --nan-at 3,1"
        whole = train(flags)["final"]
        if whole["skipped"] != 1 or not whole["replicas_identical"]:
            fail(f"{exchange}: {whole}")
        if exchange == "server:1":  # which keeps what the other two do
            continue
        train(f"{flags} --stop 5 --save {path('striped')}")
        second = train(f"{flags} --resume {path('striped')}")["final"]
        if second["checksum"] != whole["checksum"]:
            fail(f"{exchange}: {whole['checksum']} at once, {second['checksum']} in two halves")
    refused(f"{base} --exchange split", "'dense' travels by all-reduce; exchange split needs one that gathers")
    refused(f"{base} --scheme dgc --exchange server:1,second=dgc", "accumulates momentum")
    refused(f"{base} --scheme dgc --exchange ring", "expected auto, split or server:S")


def case_delays():
    """Delayed averaging learns, goes on exactly with messages under way, and names what clashes."""
    base = "--model mlp --data digits --batch 32 --workers 2 --lr 0.05"
    for flags in ("--delay 4", "--local-steps 4", "--delay 6 --local-steps 2 --scheme dgc:density=0.01 --correction ledger:book=b",
                  "--delay 4 --correction pull", "--delay 4 --correction published --nesterov --weight-decay 1e-4",
                  "--delay 3 --correction none", "--delay 4 --optimizer adamw --lr 0.001"):
        flags = f"{base} {flags}" if "--optimizer" not in flags else f"{base.replace('--lr 0.05', '')} {flags}"
        whole = train(f"{flags} --steps 41 --nan-at 3,1")
        final, rows = whole["final"], whole["rows"]
        if final["skipped"] != 1 or not final["replicas_identical"]:
            fail(f"{flags}: {final}")
        if "none" not in flags and not rows[-1]["loss"] < rows[0]["loss"]:  # which needs a smaller learning rate
            fail(f"{flags}: the loss did not fall")
        if flags.endswith(("--delay 4", "pull", "none")):  # no state that the others do not have
            continue
        train(f"{flags} --steps 41 --nan-at 3,1 --stop 20 --save {path('late')}")
        second = train(f"{flags} --steps 41 --resume {path('late')}")["final"]
        if second["checksum"] != final["checksum"]:
            fail(f"{flags}: {final['checksum']} at once, {second['checksum']} in two halves")
    measured = train(f"{base} --steps 60 --delay auto:50 --link inf,2ms")
    if not measured["final"]["replicas_identical"]:
        fail(f"measured delay: {measured['final']}")
    refused(f"{base} --delay soon", "--delay", "auto:MOST")
    refused(f"{base} --delay 4 --correction sometimes", "--correction", "soft, ledger, published, pull or none")
    refused(f"{base} --delay 4 --exchange split --scheme dgc", "--exchange split", "clash")
    refused(f"{base} --delay 4 --scheme int8 --optimizer adam --lr 0.001".replace("--lr 0.05", ""), "second moments", "SGD")
    refused(f"{base} --delay 4 --correction published --optimizer adam --lr 0.001".replace("--lr 0.05", ""), "--optimizer sgd")
    refused(f"{base} --delay 4 --scheme signum", "signum", "vote")
    refused(f"{base} --delay 4 --scheme powersgd", "only one message")
    job = Running("--timeout 3 --delay 10 --lr 0.01")
    os.kill(job.workers[2], signal.SIGSTOP)
    job.ended(1, "rank 2")


def case_waits():
    """All waiting counts: nobody sends more per second than the link carries, whatever else a run stops for. Every method;
    every scheme keeps the same law in the test BenchExchangeKeepsToTheLink."""
    base = f"--model mlp --data digits --workers 2 --steps 16 --lr 0.01 --link 50mbit,2ms"
    corrections = [f"--delay 5 --correction {name}" for name in ("soft", "ledger", "published", "pull", "none")]
    for number, flags in enumerate(["--scheme dense", "--scheme powersgd", "--scheme dgc --exchange split", "--local-steps 3",
                                    "--scheme onebit --delay 5 --local-steps 2", *corrections]):
        stops = ("--eval-every 3", f"--save-every 3 --save {path('often')}")[number % 2]
        final = train(f"{base} {flags} {stops}")["final"]
        pace = 8e-6 * final["bytes_per_step"] / final["seconds_per_step"]
        print(f"{flags} {stops}: {pace:.1f} Mbit/s")
        if not 0 < pace < 50:
            fail(f"{flags} {stops}: {pace:.1f} Mbit/s over a link of 50")


def case_refuses():
    refused("--wings", "--wings", "see thinwire train --help")
    refused("--modle mlp", "did you mean '--model'?")
    for flag in ("lr", "momentum", "weight-decay", "clip", "epochs", "bucket-mb", "fuse-mb", "timeout", "beta1", "beta2", "epsilon"):
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
    refused("--optimizer adma", "--optimizer: expected sgd, adam or adamw, got 'adma'; did you mean 'adam'?")
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
    refused(f"{base} --workers 2 --scheme dgc --resume {path('state')}", "--scheme dense", "this run has dgc")
    refused(f"{base} --workers 2 --optimizer adam --resume {path('state')}", "--optimizer sgd", "this run has adam")
    refused(f"{base} --workers 2 --partition contiguous --resume {path('state')}", "--partition iid", "this run has contiguous")
    refused(f"{base} --workers 2 --stop 2 --resume {path('state')}", "step 2")
    file = path("state.rank1")
    whole = open(file, "rb").read()
    for damaged in (whole[: len(whole) // 2], b"", whole[:100] + b"!" + whole[101:], b"not a state at all"):
        open(file, "wb").write(damaged)
        refused(f"{base} --workers 2 --resume {path('state')}", "state.rank1")
    os.remove(file)
    refused(f"{base} --workers 2 --resume {path('state')}", "state.rank1", "complete")
    open(file, "wb").write(whole)
    first = path("state.rank0")
    os.rename(first, path("aside"))
    open(first, "wb").write(whole)
    refused(f"{base} --workers 2 --resume {path('state')}", "state.rank0' is the checkpoint of rank 1, expected that of rank 0")
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
    failed("--workers 2 --steps 30 --lr 1e38 --scheme dense", "of 30 steps were skipped", "lower --lr")
    failed("--workers 2 --steps 30 --lr 1e38 --delay 2", "of 30 steps were skipped", "lower --lr")


def failed(flags, *parts):
    """A run that failed, with a result all the same."""
    flags = f"--model mlp --data digits {flags}"
    done = subprocess.run(command(flags), env=CLEAN, capture_output=True, text=True, timeout=100)
    print(flags, done.returncode, done.stdout.splitlines()[-1:], done.stderr.strip())
    if done.returncode != 1 or "on the test set after" not in done.stdout:
        fail(f"{flags}: expected code 1 and a result, got {done.returncode}: {done.stdout}{done.stderr}")
    for part in parts:
        if part not in done.stderr:
            fail(f"{flags}: no '{part}' in: {done.stderr}")


def case_swallows():
    """What cannot be written at the end is an error, but the result and all other files are there."""
    os.mkdir(path("state.rank0"))
    failed(f"--workers 2 --steps 4 --save {path('state')} --json {path('rows.json')}", "state.rank0")
    with open(path("rows.json")) as file:
        if json.load(file)["final"]["steps"] != 4:
            fail("no JSON")
    failed(f"--workers 2 --steps 4 --json /dev/full --trace {path('trace.json')}", "cannot write '/dev/full'")
    with open(path("trace.json")) as file:
        json.load(file)


def case_killed():
    for rank in (2, 0):
        job = Running()
        os.kill(job.workers[rank], signal.SIGKILL)
        job.ended(1, f"rank {rank}", "signal 9")


def case_stopped():
    job = Running("--timeout 3")
    os.kill(job.workers[0], signal.SIGSTOP)  # which holds the store; case_delays stops another
    job.ended(1, "rank 0")


def goes_on(flags, err):
    """The checkpoint that an interrupted job speaks of: resumed, it gives the bits of a training that was not interrupted."""
    said = re.search(r"interrupted after step (\d+) of (\d+); the checkpoint is '(.*)\.rank0' to '.*'; .* --resume (.*)", err)
    if not said or said[3] != said[4]:
        fail(f"no step and checkpoint in: {err}")
    flags += f" --steps {said[2]} --stop {int(said[1]) + 10}"
    whole, second = train(flags)["final"], train(f"{flags} --resume {said[3]}")["final"]
    print(f"interrupted after step {said[1]}: {second['checksum']}, at once {whole['checksum']}")
    if second["checksum"] != whole["checksum"]:
        fail(f"{flags}: resumed {second}, at once {whole}")


def case_interrupted():
    flags = f"--scheme dgc:density=0.01 --save {path('state')} --json {path('rows.json')}"
    job = Running(flags)
    job.process.send_signal(signal.SIGINT)  # to the parent alone
    err = job.ended(130, "saves a checkpoint", "--resume")
    with open(path("rows.json")) as file:
        if not json.load(file)["final"]["steps"] >= 40:
            fail("no result of the interrupted training")
    goes_on("--model mlp --data digits --workers 3 --scheme dgc:density=0.01", err)
    job = Running(f"--save {path('state')}")
    os.kill(job.workers[1], signal.SIGSTOP)  # so that the ranks cannot agree
    for _ in range(2):
        job.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    job.ended(130, "interrupted twice")
    job = Running()
    for pid in [job.process.pid] + list(job.workers.values()):  # as a terminal does
        os.kill(pid, signal.SIGINT)
    job.ended(130, "interrupted; all workers were ended", "--save FILE")
    job = Running()
    job.process.stdout.close()  # as `| head` does
    job.ended(1, "standard output")
    job = Running()
    job.process.kill()
    time.sleep(2)
    if any(alive(pid) for pid in job.workers.values()):
        fail("workers outlive the process that started them")


def case_traces():
    file = path("trace.json")
    train(f"--model lstm --data stdlib --sequence 16 --workers 2 --steps 6 --bucket-mb 0.5 --trace {file}")
    with open(file) as trace:
        events = [event for event in json.load(trace)["traceEvents"] if event["ph"] == "X"]
    for name in ("forward", "backward", "encode", "exchange", "decode", "update"):
        if not any(event["name"] == name for event in events):
            fail(f"no {name} in the trace")
    backward = {e["args"]["step"]: e for e in events if e["name"] == "backward"}
    inside = 0
    for event in events:
        around = backward[event["args"]["step"]]
        inside += event["name"] == "exchange" and around["ts"] < event["ts"] < around["ts"] + around["dur"]
    print(f"{inside} exchanges began inside backward")
    if inside == 0:
        fail("no exchange inside backward: nothing overlaps")


def start_two(flags, variables=lambda rank: {}):
    """Two processes with torchrun's variables, in place of torchrun."""
    port = str(20000 + os.getpid() % 12000)  # below those that the kernel gives to whoever asks for any
    return [subprocess.Popen(command(flags) + ["--json", path(f"joined{rank}.json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, env={**CLEAN, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                             "MASTER_PORT": port, **variables(rank)})
            for rank in range(2)]


def join_two(flags, variables=lambda rank: {}):
    """How two such processes ended."""
    both = start_two(flags, variables)
    outputs = [one.communicate(timeout=120)[0] for one in both]
    if any(one.returncode != 0 for one in both) or "2 workers" not in outputs[0] or outputs[1] != "":
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
    for env, part in (({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"), ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK"),
                      ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "scontrol"),
                      ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "--engine mpi")):
        done = subprocess.run(flags, env={**CLEAN, **env}, capture_output=True, text=True)
        if done.returncode != 2 or part not in done.stderr:
            fail(f"{env}: {done.returncode}, {done.stderr}")
    done = subprocess.run(flags + ["--workers", "3"], env={**CLEAN, "RANK": "0", "WORLD_SIZE": "2"}, capture_output=True, text=True)
    if done.returncode != 2 or "has 2 workers" not in done.stderr:
        fail(f"--workers in a job of 2: {done.stderr}")


def shared_gpu(rank):
    """What lets NCCL's ranks share a GPU: each claims to be on a machine of its own."""
    return {"NCCL_HOSTID": f"rank{rank}", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1",
            "NCCL_SOCKET_IFNAME": "lo"}


def case_cuda():
    """On a machine with a GPU: learns as on the CPU, replicas are identical, Gloo and NCCL give the same bits."""
    task = "--model mlp --data digits --batch 32 --steps 60"
    for scheme in SCHEMES:
        for workers in (1, 2):
            flags = f"{task} --scheme {scheme} --workers {workers}"
            here, there = train(flags)["final"], train(flags + " --device cuda")["final"]
            print(scheme, workers, "accuracy on the CPU", here["accuracy"], "on the GPU", there["accuracy"], there["checksum"])
            if not there["replicas_identical"] or there["skipped"] or abs(here["accuracy"] - there["accuracy"]) > 0.03:
                fail(f"{flags}: {here}, on the GPU {there}")
        nccl = join_two(f"{task} --scheme {scheme} --device cuda --engine nccl", shared_gpu)
        print(scheme, "over NCCL", nccl["accuracy"], nccl["checksum"])
        if nccl["checksum"] != there["checksum"]:
            fail(f"{scheme}: NCCL gives other weights than Gloo")
    if train(f"{task} --workers 2 --device cuda --nan-at 3,1")["final"]["skipped"] != 1:
        fail("a NaN was not skipped")
    whole = train(f"--model resnet20 --data digits --steps 8 --device cuda --precision bf16")["final"]
    train(f"--model resnet20 --data digits --steps 8 --stop 4 --device cuda --precision bf16 --save {path('state')}")
    again = train(f"--model resnet20 --data digits --steps 8 --device cuda --precision bf16 --resume {path('state')}")["final"]
    if whole["checksum"] != again["checksum"]:
        fail(f"resumed otherwise: {whole} {again}")
    refused("--engine nccl --workers 100", "--engine nccl", "100 processes", "--engine gloo")


def joins_under(launcher, flags):
    """A few steps as two workers of a real launcher, which trains as our own job does."""
    out = path("launched.json")
    command_line = launcher + command(f"--model mlp --data digits --steps 4 --json {out} {flags}")
    done = subprocess.run(command_line, env={**CLEAN, **MPI}, capture_output=True, text=True, timeout=200)
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
    """`thinwire bench step`: both loops run, and the ratio is there."""
    out = path("bench.json")
    line = [PROGRAM, "bench", "step", "--batch", "8", "--workers", "2", "--steps", "2", "--pairs", "3", "--json", out]
    done = subprocess.run(line, env=CLEAN, capture_output=True, text=True, timeout=100)
    if done.returncode != 0 or "ratio" not in done.stdout:
        fail(f"bench step: code {done.returncode}: {done.stdout}{done.stderr}")
    with open(out) as file:
        row = json.load(file)["rows"][0]
    if row["workers"] != 2 or row["pairs"] != 3 or not row["ratio_low"] <= row["ratio"] <= row["ratio_high"]:
        fail(f"bench step: {row}")
    done = subprocess.run(line[:3] + ["--workers", "1"], env=CLEAN, capture_output=True, text=True)
    if done.returncode != 2 or "--workers 2" not in done.stderr:
        fail(f"bench step with one worker: {done.returncode}, {done.stderr}")


globals()["case_" + sys.argv[1]]()
