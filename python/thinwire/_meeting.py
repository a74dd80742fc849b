"""_meeting: the ranks of a link come together after equally many steps, and find out when they do not.

By the job's store and not by a collective: ranks that have sent different numbers of messages would wait for each other in different ones.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from typing import Any, Callable

import torch.distributed as dist

from . import _native

_GLANCE, _GRACE = 0.002, 1.0  # seconds: between looks at who has come; for the others to find out too


class Meeting:
    def __init__(self, store: Any, group: dist.ProcessGroup, timeout: float) -> None:
        self._store, self._timeout = store, timeout  # no store: of one worker
        self._rank, self._world = group.rank(), group.size()
        self._number = 0

    def meet(self, steps: int, check: Callable[[], None]) -> None:
        """Returns when all are here, with as many steps. Calls `check` while it waits, which raises when a rank is known to be lost."""
        if self._store is None:
            return
        self._number += 1
        keys = [f"drain{self._number}/{rank}" for rank in range(self._world)]
        self._store.set(keys[self._rank], str(steps))
        end = time.monotonic() + self._timeout
        while not self._store.check(keys):
            check()
            if time.monotonic() > end:
                self._miss(steps, [rank for rank, key in enumerate(keys) if not self._store.check([key])])
            time.sleep(_GLANCE)
        self._compare(steps, [int(self._store.get(key)) for key in keys])

    def _miss(self, steps: int, absent: list[int]) -> None:
        time.sleep(_GRACE)  # the store may be this process's
        raise _native.Error(f"rank {self._rank}: drain() after {steps} steps: rank {', '.join(map(str, absent))} did not come within "
                            f"{self._timeout:g} s; all ranks must take the same number of steps and then drain")

    def _compare(self, steps: int, taken: list[int]) -> None:
        for rank, count in enumerate(taken):
            if count != steps:
                raise _native.Error(f"rank {self._rank}: drain() after {steps} steps, rank {rank} has taken {count}: all ranks must take the same "
                                    "number. A GradScaler that skips steps must be given to attach(scaler=...)")
