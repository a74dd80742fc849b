"""workers: real processes that meet over Gloo and run a function each. They are forked from one
server that has torch loaded, so a job costs milliseconds and a killed worker affects nobody
else."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import datetime
import gc
import io
import itertools
import multiprocessing
import os
import pathlib
import random
import runpy
import socket
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["torch", "torch.distributed", "torch._dynamo", "thinwire", "pytest", "workers"]
)
# Objects that the server has loaded are not garbage. Searching them in a worker would copy all.
gc.freeze()


# Processes of pytest-xdist divide the ports, because a port that one of them has chosen looks free
# until its rank 0 listens. Those from 26000 on are for tests/train.
_DIVIDED = 8
_mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _DIVIDED
_ports = itertools.cycle(random.sample(range(20000 + _mine, 26000, _DIVIDED), 6000 // _DIVIDED))


def free_port():
    """A port that is not used again soon, and that the kernel does not give out as ephemeral: it
    takes some time until rank 0 listens there."""
    for port in _ports:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def _work(pipe, rank, world, port, function, args):
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=60),
        )
        result = function(rank, world, *args)
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()
        buffer = io.BytesIO()  # tensors would be sent as handles of a process that is about to end
        torch.save(result, buffer)
        pipe.send((True, buffer.getvalue()))
    except BaseException as error:  # noqa: BLE001 - told to the test, which decides
        pipe.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
    os._exit(0)  # nothing in a worker matters after its answer


class Job:
    def __init__(self, world, function, *args):
        port = free_port()
        self.pipes, self.processes = [], []
        for rank in range(world):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, rank, world, port, function, args)
            )
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def outcomes(self, seconds=100):
        """For each rank: (True, result), (False, text), or None if it died or did not
        end in time."""
        end = time.monotonic() + seconds
        found = []
        for pipe in self.pipes:
            try:
                found.append(pipe.recv() if pipe.poll(max(0.0, end - time.monotonic())) else None)
            except EOFError:
                found.append(None)
        for process in self.processes:
            process.kill()
            process.join()
        return found


def run(world, function, *args, seconds=100):
    """The results of all ranks, or an AssertionError with what went wrong where."""
    outcomes = Job(world, function, *args).outcomes(seconds)
    wrong = [
        f"rank {rank}: {outcome[1] if outcome else 'died or did not end in time'}"
        for rank, outcome in enumerate(outcomes)
        if not outcome or not outcome[0]
    ]
    assert not wrong, "\n".join(wrong)
    return [torch.load(io.BytesIO(outcome[1]), weights_only=False) for outcome in outcomes]


# -- scripts, as torchrun would start them


def _script(rank, world, port, words, variables, file):
    """Becomes a worker of torchrun without its imports: the server has loaded torch already."""
    with open(file, "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(variables, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    for name, value in (("RANK", rank), ("WORLD_SIZE", world)):
        os.environ[name] = os.environ[f"LOCAL_{name}"] = str(value)
    torch.set_num_threads(1)
    sys.argv[:] = words
    sys.path.insert(0, os.path.dirname(words[0]))
    try:
        runpy.run_path(words[0], run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - printed; the exit code tells the test
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_script(world, words, folder, seconds=240, **variables):
    """Runs `words` (a script and its arguments) on that many ranks. Returns what they printed,
    rank by rank."""
    port = free_port()
    words = [str(word) for word in words]
    files = [os.path.join(folder, f"output.{rank}") for rank in range(world)]
    ranks = [
        context.Process(target=_script, args=(rank, world, port, words, variables, file))
        for rank, file in enumerate(files)
    ]
    for process in ranks:
        process.start()
    end = time.monotonic() + seconds
    for process in ranks:
        process.join(max(0.0, end - time.monotonic()))
    codes = [process.exitcode for process in ranks]  # None: still running
    for process in ranks:
        process.kill()
        process.join()
    texts = [pathlib.Path(file).read_text() for file in files]
    assert codes == [0] * world, f"{words}: exit codes {codes}\n" + "\n".join(texts)
    return "".join(texts)


# -- a small training that most tests share


def net(width=32, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(20, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 10),
    )


def wrap(model, **options):
    """Several buckets even for a small model."""
    return DistributedDataParallel(
        model, bucket_cap_mb=options.pop("bucket_cap_mb", 0.004), **options
    )


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.125, "momentum": 0.9, **options})


def batch(rank, step, size=8):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(size, 20, generator=generator), torch.randint(
        0, 10, (size,), generator=generator
    )


def loss_of(model, rank, step):
    x, y = batch(rank, step)
    return torch.nn.functional.cross_entropy(model(x), y)


def train(ddp, optimizer, rank, steps, poison=()):
    """Steps by number; `poison` has (step, rank) whose loss is not finite."""
    loss = torch.zeros(())
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(ddp, rank, step)
        if (step, rank) in poison:
            loss = loss * float("inf")
        loss.backward()
        optimizer.step()
    return float(loss)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def same_everywhere(tensor):
    """All ranks hold exactly these bits."""
    copies = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, tensor)
    return all(torch.equal(copy.view(torch.int32), tensor.view(torch.int32)) for copy in copies)
