"""test_failure: kill -9 of one rank, for every scheme of the registry: the others raise an error
that names it, within the time limit."""

# SPDX-License-Identifier: Apache-2.0
import os
import signal
import time

import pytest
import thinwire
from workers import Job, net, sgd, train, wrap

SCHEMES = [scheme.name for scheme in thinwire.schemes()]
KILLED_AT, TIMEOUT = 4, 20  # by step 4 DDP has rebuilt its buckets and sends them in backward


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


def check(scheme, outcomes, victim):
    assert outcomes[victim] is None, scheme
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome is not None and not outcome[0], (scheme, rank, outcome)
            text = outcome[1].splitlines()[0]
            assert f"rank {victim} (silent)" in text, f"{scheme}, rank {rank}: {text}"
            assert not any(
                f"rank {other} (silent)" in text
                for other in range(len(outcomes))
                if other != victim
            ), text


@pytest.mark.parametrize(
    "world,victim,schemes",
    [(2, 1, SCHEMES[:9]), (2, 1, SCHEMES[9:]), (4, 2, ["dense", "dgc", "powersgd"])],
)
def test_a_killed_rank_is_named(world, victim, schemes):
    """A killed job tests only one scheme, and survivors mostly wait for the roll call, so
    several jobs run at a time."""
    jobs = {scheme: Job(world, dies, scheme, victim) for scheme in schemes}
    outcomes = {scheme: job.outcomes(120) for scheme, job in jobs.items()}
    for scheme in schemes:
        check(scheme, outcomes[scheme], victim)


def test_the_holder_of_the_store_is_named():
    check("dgc", Job(3, dies, "dgc", 0).outcomes(120), 0)
