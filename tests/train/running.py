"""running.py: `thinwire train` as a process: finished, rejected, failed, or running.
SPDX-License-Identifier: Apache-2.0
"""
import json, os, re, signal, subprocess, sys, tempfile, time

PROGRAM, LAUNCHER = (sys.argv + [""])[2:4]
SCRATCH = tempfile.TemporaryDirectory()
SCHEMES = ["dense", "topk:density=0.01", "dgc:density=0.01,warmup=8"]
LAUNCHERS = ("RANK", "WORLD_SIZE", "OMPI_COMM_", "PMI_", "SLURM_")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}


def path(name):
    return os.path.join(SCRATCH.name, name)


def fail(text):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {text}")


def command(flags):
    batch = [] if "--batch" in flags else ["--batch", "8"]
    return [PROGRAM, "train"] + batch + flags.split()


def start(flags, env=None, launcher=()):
    return subprocess.Popen([*launcher, *command(flags)], env=env or CLEAN,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train(flags, env=None, launcher=()):
    """Runs to the end and returns the JSON document."""
    out = path("out.json")
    words = [*launcher, *command(flags), "--json", out]
    done = subprocess.run(words, env=env or CLEAN, capture_output=True, text=True)
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


def failed(flags, *parts):
    """A run that failed but has a result."""
    flags = f"--model mlp --data digits {flags}"
    done = subprocess.run(command(flags), env=CLEAN, capture_output=True, text=True, timeout=100)
    print(flags, done.returncode, done.stdout.splitlines()[-1:], done.stderr.strip())
    if done.returncode != 1 or "on the test set after" not in done.stdout:
        fail(f"{flags}: expected code 1 and a result, got {done}")
    for part in parts:
        if part not in done.stderr:
            fail(f"{flags}: no '{part}' in: {done.stderr}")


def workers_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def rank_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        entries = [entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry]
    return dict(entries).get(b"RANK")


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Running:
    """A long training with 3 workers that is already running."""

    def __init__(self, flags=""):
        flags = f"--model mlp --data digits --workers 3 --steps 1000000 --report-every 20 {flags}"
        self.process = start(flags)
        for line in self.process.stdout:
            if line.split()[:1] == ["40"]:
                break
        else:
            fail(f"did not come to step 40: {self.process.stderr.read()}")
        self.workers = {int(rank_of(pid)): pid for pid in workers_of(self.process.pid)}
        if sorted(self.workers) != [0, 1, 2]:
            fail(f"expected 3 workers, got {self.workers}")

    def ended(self, code, *parts):
        """The limit is for a job that hangs: on a busy machine the kernel alone may take ten
        seconds to end a process."""
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


def start_two(flags, variables=lambda rank: {}):
    """Two processes with torchrun's variables, instead of torchrun."""
    # Below the kernel's ephemeral ports, above those of tests/python/workers.py.
    port = 26000 + os.getpid() % 6000
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [start(f"{flags} --json {path(f'joined{rank}.json')}",
                  {**CLEAN, **job, "RANK": str(rank), **variables(rank)}) for rank in range(2)]


def goes_on(flags, err):
    """The checkpoint that an interrupted job names is complete."""
    said = re.search(r"interrupted after step (\d+) of (\d+); the checkpoint is '(.*)\.rank0' to "
                     r"'.*'; .* --resume (.*)", err)
    if not said or said[3] != said[4]:
        fail(f"no step and checkpoint in: {err}")
    goes_on_from(said[3], int(said[1]), said[2], flags)


def goes_on_from(checkpoint, step, steps, flags, **how):
    """The resumed training has the same bits as an uninterrupted one."""
    flags += f" --steps {steps} --stop {step + 10}"
    whole = train(flags, **how)["final"]
    second = train(f"{flags} --resume {checkpoint}", **how)["final"]
    print(f"interrupted after step {step}: {second['checksum']}, at once {whole['checksum']}")
    if second["checksum"] != whole["checksum"]:
        fail(f"{flags}: resumed {second}, at once {whole}")
