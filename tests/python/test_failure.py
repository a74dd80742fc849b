"""test_failure: kill -9 of one rank, for every scheme of the registry: the others raise an error that names it, within the time limit."""
# SPDX-License-Identifier: Apache-2.0
import functools
import os
import signal
import time

import pytest
import thinwire
from workers import Job, net, sgd, train, wrap

SCHEMES = [scheme["name"] for scheme in thinwire.schemes()]
KILLED_AT, TIMEOUT = 4, 20  # by step 4 DDP's cut is settled, so that buckets leave during backward
AT_ONCE = 24  # processes: survivors mostly wait for the roll call


def dies(rank, world, scheme, victim):
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    thinwire.attach(ddp, optimizer, scheme=scheme, timeout=TIMEOUT)
    train(ddp, optimizer, rank, range(KILLED_AT))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        train(ddp, optimizer, rank, range(KILLED_AT, 20))
    except Exception:
        assert time.monotonic() - begin < TIMEOUT, "the error came after the time limit"
        raise


@functools.cache
def fates(world, victim):
    """What became of the ranks, by scheme: a killed job serves one scheme only, so several run at a time."""
    found, per_batch = {}, AT_ONCE // world
    for first in range(0, len(SCHEMES), per_batch):
        jobs = {scheme: Job(world, dies, scheme, victim) for scheme in SCHEMES[first:first + per_batch]}
        found.update({scheme: job.outcomes(120) for scheme, job in jobs.items()})
    return found


def check(outcomes, victim):
    assert outcomes[victim] is None
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome is not None and not outcome[0], (rank, outcome)
            text = outcome[1].splitlines()[0]
            assert f"rank {victim} (silent)" in text, f"rank {rank}: {text}"
            assert not any(f"rank {other} (silent)" in text for other in range(len(outcomes)) if other != victim), text


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("world,victim", [(2, 1), (4, 2)])
def test_a_killed_rank_is_named(world, victim, scheme):
    check(fates(world, victim)[scheme], victim)


def test_the_holder_of_the_store_is_named():
    check(Job(3, dies, "dgc", 0).outcomes(120), 0)
