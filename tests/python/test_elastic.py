"""test_elastic: torchrun's own restarts. A worker is killed and torchrun restarts all of them, or a
whole node is lost and torchrun continues with half of the workers. Both resume from the last
checkpoint, which has one file per rank.

torchrun also starts this file as a script: test_elastic.py FOLDER WORKERS worker|node, where the
last word says what dies."""

# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import thinwire
from workers import free_port, net, run, same_everywhere, sgd, train, weights, wrap

STEPS, EVERY, DEATH = 16, 5, 13  # a checkpoint after every fifth step; the death is in step 13
LAST = DEATH // EVERY * EVERY


def training():
    model = net()
    ddp, optimizer = wrap(model), sgd(model, weight_decay=0.01)
    return (
        model,
        ddp,
        optimizer,
        thinwire.attach(ddp, optimizer, scheme="dgc:density=0.05", timeout=20),
    )


def save(folder, step, model, optimizer, handle):
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "thinwire": handle.state_dict(),
    }
    torch.save(state, folder / f"{step}.{dist.get_rank()}.pt")
    dist.barrier()
    if dist.get_rank() == 0:  # complete only now
        (folder / "new").write_text(str(step))
        os.replace(folder / "new", folder / "last")


def files_of(folder):
    """The files of the last complete checkpoint, rank by rank; none before the first."""
    if not (folder / "last").exists():
        return []
    return [
        torch.load(file, weights_only=True)
        for file in sorted(folder.glob(f"{(folder / 'last').read_text()}.*.pt"))
    ]


def resume(files, model, optimizer, handle):
    """Each rank loads its own file, or all of them if the number of workers has changed. Returns
    the step to continue with."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model.load_state_dict(files[0]["model"])
    optimizer.load_state_dict(files[0]["optimizer"])
    handle.load_state_dict(
        files[rank]["thinwire"]
        if len(files) == world
        else thinwire.merge_states([file["thinwire"] for file in files])
    )
    return files[0]["step"]


def die(victim):
    if victim == "node":
        os.kill(
            os.getppid(), signal.SIGKILL
        )  # torchrun's agent; the node's other worker ends by itself, with an error that names us
    os.kill(os.getpid(), signal.SIGKILL)


def script(folder, workers, victim):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world, files = dist.get_rank(), dist.get_world_size(), files_of(folder)
    while not files and world < workers:
        time.sleep(
            1
        )  # torchrun has started without the second node; it restarts us when that node joins
    model, ddp, optimizer, handle = training()
    first = resume(files, model, optimizer, handle) if files else 0
    (folder / f"life.{int(bool(files))}.{rank}").write_text(f"from {first}, {world} workers")
    if files:
        torch.save(handle.state_dict()["entries"], folder / f"loaded.{rank}")
    for step in range(first, STEPS):
        if step == DEATH and rank == workers - 1 and not files:
            die(victim)
        train(ddp, optimizer, rank, [step])
        if (step + 1) % EVERY == 0 and not files:
            save(folder, step + 1, model, optimizer, handle)
    torch.save(weights(model), folder / f"weights.{rank}")
    dist.barrier()
    dist.destroy_process_group()


def torchrun(folder, name, *words):
    """The agents' own store outlives the workers, and in torch 2.13 a restarted job reads the
    old addresses in it. So this uses another store."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--monitor-interval",
        "0.1",
        "--max-restarts",
        "2",
        *words,
    ]
    variables = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
        "THINWIRE_LOG": "warning",
    }
    with open(folder / f"log.{name}", "w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})


def wait(agent, folder, expected):
    try:
        code = agent.wait(400)
    except subprocess.TimeoutExpired:
        agent.terminate()  # it ends its workers
        code = agent.wait(40)
    assert code == expected, "\n".join(
        f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(folder.glob("log.*"))
    )


def check(folder, expected, before, after):
    for rank, value in enumerate(expected):
        assert (folder / f"life.0.{rank}").read_text() == f"from 0, {before} workers"
        assert (folder / f"life.1.{rank}").read_text() == f"from {LAST}, {after} workers"
        assert torch.equal(
            torch.load(folder / f"weights.{rank}").view(torch.int32), value.view(torch.int32)
        ), f"rank {rank} has other bits"


def undisturbed(rank, world):
    model, ddp, optimizer, _ = training()
    train(ddp, optimizer, rank, range(STEPS))
    return weights(model)


def test_a_killed_worker_is_started_again(tmp_path):
    agent = torchrun(
        tmp_path,
        "agent",
        "--standalone",
        "--nproc-per-node",
        "2",
        __file__,
        str(tmp_path),
        "2",
        "worker",
    )
    wait(agent, tmp_path, 0)
    check(tmp_path, run(2, undisturbed), 2, 2)


def goes_on(rank, world, files):
    model, ddp, optimizer, handle = training()
    train(ddp, optimizer, rank, range(resume(files, model, optimizer, handle), STEPS))
    assert same_everywhere(weights(model))
    return weights(model)


def sums(entries_of_ranks):
    names = [name for name in entries_of_ranks[0] if name.endswith(("/u", "/v"))]
    return {name: sum(entries[name] for entries in entries_of_ranks) for name in names}


def test_torchrun_goes_on_without_a_lost_node(tmp_path):
    """Two nodes of two workers. --nnodes 1:2 lets one of them continue alone, and no residual is
    lost."""
    endpoint = f"127.0.0.1:{free_port()}"
    agents = [
        torchrun(
            tmp_path,
            node,
            "--nnodes",
            "1:2",
            "--nproc-per-node",
            "2",
            "--rdzv-backend",
            "c10d",
            "--rdzv-id",
            "elastic",
            "--rdzv-endpoint",
            endpoint,
            "--rdzv-conf",
            f"is_host={int(node == 0)},last_call_timeout=3,keep_alive_interval=1,"
            "keep_alive_max_attempt=6",
            "--local-addr",
            "127.0.0.1",
            __file__,
            str(tmp_path),
            "4",
            "node",
        )
        for node in range(2)
    ]
    try:
        wait(agents[0], tmp_path, 0)
        assert agents[1].wait(1) == -signal.SIGKILL
    finally:
        agents[1].terminate()
    files = files_of(tmp_path)
    expected, found = (
        sums([file["thinwire"]["entries"] for file in files]),
        sums([torch.load(tmp_path / f"loaded.{rank}") for rank in range(2)]),
    )
    assert (
        len(files) == 4
        and expected.keys() == found.keys()
        and any(value.abs().sum() > 0 for value in expected.values())
    )
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    check(tmp_path, run(2, goes_on, files), 4, 2)


if __name__ == "__main__":
    script(pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
