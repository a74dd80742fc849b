"""test_namespaces: torchrun over three network namespaces as three hosts. One host dies in
mid-training, including its agent, and is started again. The others meet it at a new rendezvous, all
resume from the last checkpoint, and end with the bits of an undisturbed run.

This file is also the script that torchrun starts: test_namespaces.py FOLDER."""

# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist
import thinwire
from workers import net, run, sgd, train, weights, wrap

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))
import namespaces  # noqa: E402

HOSTS, STEPS, EVERY, DEATH = (
    3,
    16,
    5,
    13,
)  # a checkpoint after every fifth step; the death is in step 13


def training():
    model = net()
    ddp, optimizer = wrap(model), sgd(model, weight_decay=0.01)
    return (
        model,
        ddp,
        optimizer,
        thinwire.attach(ddp, optimizer, scheme="dgc:density=0.05", timeout=20),
    )


def undisturbed(rank, world):
    model, ddp, optimizer, handle = training()
    for step in range(STEPS):
        train(ddp, optimizer, rank, [step])
        if (step + 1) % EVERY == 0:
            handle.full_state_dict()
    return weights(model)


def die_once(folder):
    """The host's power fails: the worker and torchrun's agent, its parent, are gone."""
    if not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def script(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, file, first = dist.get_rank(), folder / "run.pt", 0
    model, ddp, optimizer, handle = training()
    if file.exists():
        saved = torch.load(file, weights_only=True)
        first = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        handle.load_state_dict(saved["thinwire"])
    with open(folder / f"starts.{rank}", "a") as starts:
        print(first, os.environ["MASTER_ADDR"], file=starts)
    for step in range(first, STEPS):
        if step == DEATH and rank == HOSTS - 1:
            die_once(folder)
        train(ddp, optimizer, rank, [step])
        if (step + 1) % EVERY == 0:
            whole = handle.full_state_dict()
            if rank == 0:
                torch.save(
                    {
                        "step": step + 1,
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "thinwire": whole,
                    },
                    folder / "new",
                )
                os.replace(folder / "new", file)
            dist.barrier()
    handle.check_replicas()
    torch.save(weights(model), folder / f"weights.{rank}")
    dist.barrier()
    dist.destroy_process_group()


def start(network, host, folder):
    """Starts torchrun on that host. All namespaces have one host name, so we state which host
    holds the rendezvous; torchrun could not guess it. The store is not the agents' own: rank 0's
    agent announces its address only in the first round, and a replaced agent would never get it."""
    conf = (
        f"is_host={int(host == 0)},join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=6"
    )
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--nnodes",
        str(HOSTS),
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "3",
        "--monitor-interval",
        "0.1",
        "--rdzv-backend",
        "c10d",
        "--rdzv-id",
        "namespaces",
        "--rdzv-endpoint",
        f"{network.address(0)}:29400",
        "--rdzv-conf",
        conf,
        "--local-addr",
        network.address(host),
        __file__,
        str(folder),
    ]
    with open(folder / f"log.{host}", "a") as log:
        return network.start(
            host,
            command,
            {
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                "OMP_NUM_THREADS": "1",
                "THINWIRE_LOG": "warning",
            },
            stdout=log,
            stderr=log,
        )


def logs(folder):
    return "\n".join(
        f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(folder.glob("log.*"))
    )


def test_a_host_that_died_comes_back(tmp_path):
    if reason := namespaces.missing():
        pytest.skip(reason)
    end = time.monotonic() + 100
    with namespaces.Network(HOSTS) as network:
        agents = [start(network, host, tmp_path) for host in range(HOSTS)]
        assert agents[-1].wait(end - time.monotonic()) == -signal.SIGKILL, logs(tmp_path)
        agents[-1] = start(network, HOSTS - 1, tmp_path)
        for host, agent in enumerate(agents):
            assert agent.wait(end - time.monotonic()) == 0, f"host {host}\n{logs(tmp_path)}"
    last = DEATH // EVERY * EVERY
    expected = run(HOSTS, undisturbed)
    for rank in range(HOSTS):
        starts = (tmp_path / f"starts.{rank}").read_text().splitlines()
        assert (starts[0], starts[-1]) == (
            f"0 {network.address(0)}",
            f"{last} {network.address(0)}",
        )
        assert torch.equal(
            torch.load(tmp_path / f"weights.{rank}").view(torch.int32),
            expected[rank].view(torch.int32),
        )


if __name__ == "__main__":
    script(pathlib.Path(sys.argv[1]))
