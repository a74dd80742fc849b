"""test_failure: kill -9 of one rank: the others raise an error that names it, long before the time limit."""
# SPDX-License-Identifier: Apache-2.0
import os
import signal
import time

import pytest
import thinwire
from workers import Job, net, sgd, train, wrap

KILLED_AT = 4


def dies(rank, world, scheme, victim):
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    thinwire.attach(ddp, optimizer, scheme=scheme, timeout=20)
    train(ddp, optimizer, rank, range(KILLED_AT))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    train(ddp, optimizer, rank, range(KILLED_AT, 20))


@pytest.mark.parametrize("world,scheme,victim", [(4, "dgc", 2), (4, "dense", 2), (2, "powersgd", 1), (2, "dense", 1), (3, "dgc", 0)])
def test_a_killed_rank_is_named(world, scheme, victim):
    begin = time.monotonic()
    outcomes = Job(world, dies, scheme, victim).outcomes(60)
    assert time.monotonic() - begin < 20
    assert outcomes[victim] is None
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome is not None and not outcome[0], (rank, outcome)
            text = outcome[1].splitlines()[0]
            assert f"rank {victim} (silent)" in text, f"rank {rank}: {text}"
            assert not any(f"rank {other} (silent)" in text for other in range(world) if other != victim), text
