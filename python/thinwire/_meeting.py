"""_meeting: the ranks of a link come together, and find out when one does not, or differs.

By the job's store and not by a collective: ranks that have sent different numbers of messages would
wait for each other in different ones.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from typing import Any, Callable, NoReturn

import torch.distributed as dist

from . import _native

_GLANCE = 0.002  # seconds between looks at who has come
_GRACE = 1.0  # seconds for the others to find out too


class Meeting:
    def __init__(self, store: Any, group: dist.ProcessGroup, timeout: float) -> None:
        self._store, self._timeout = store, timeout  # no store: of one worker
        self._rank, self._world = group.rank(), group.size()
        self._number = 0

    def gather(self, what: str, text: str, check: Callable[[], None] = lambda: None) -> list[str]:
        """The texts of all ranks, when all have called `what`.

        Calls `check` while it waits, which raises when a rank is known to be lost.
        """
        if self._store is None:
            return [text]
        self._number += 1
        keys = [f"meeting{self._number}/{rank}" for rank in range(self._world)]
        self._store.set(keys[self._rank], f"{what}\n{text}")
        end = time.monotonic() + self._timeout
        while not self._store.check(keys):
            check()
            if time.monotonic() > end:
                self._miss(what, [rank for rank, key in enumerate(keys)
                                  if not self._store.check([key])])
            time.sleep(_GLANCE)
        told = [self._store.get(key).decode().split("\n", 1) for key in keys]
        for rank, (other, _) in enumerate(told):
            if other != what:
                self.fail(what, f"rank {rank} has called {other} instead; all ranks call the same")
        return [answer for _, answer in told]

    def meet(self, steps: int, check: Callable[[], None]) -> None:
        """Returns when all want to drain, after as many steps."""
        for rank, count in enumerate(self.gather("drain()", str(steps), check)):
            if int(count) != steps:
                self.fail(f"drain() after {steps} steps",
                          f"rank {rank} has taken {count}: all ranks must take the same number. A "
                          "GradScaler that skips steps must be given to attach(scaler=...)")

    def fail(self, what: str, why: str) -> NoReturn:
        raise _native.Error(f"rank {self._rank}: {what}: {why}")

    def _miss(self, what: str, absent: list[int]) -> NoReturn:
        time.sleep(_GRACE)  # the store may be this process's
        self.fail(what, f"rank {', '.join(map(str, absent))} did not come within "
                        f"{self._timeout:g} s; all ranks must take the same number of steps and "
                        f"then call {what}")
