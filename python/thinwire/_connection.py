"""_connection: how the ranks of an attached model reach each other.

An attachment has a Gloo backend of its own beside DDP's process group: DDP goes on using its group
(buffers, unused parameters, join), and an attachment that has lost a rank closes its connections,
so that the others notice at once. For gradients on CUDA it has a backend of NCCL besides, where DDP
has one: other collectives on that one could come in another order on another rank.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import collections
import datetime
import os
import time
from typing import Any, Callable, NoReturn, Optional

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import distributed_c10d as c10d

from . import _native

_POLL = 0.002  # seconds between looks into the store
_GRACE = 1.0  # seconds for the other ranks to find out too

# For tests on machines without a GPU: True sends gradients on the CPU the way of those on CUDA,
# "data" does so with a backend of their own.
STREAMS: Any = False

# For measurements: an emulated link for delayed averaging, as "1gbit,20ms". Bytes of CUDA then pass
# through the host.
LINK: Optional[str] = None

# Connections made so far, by group: every rank makes them in the same order.
_made: collections.Counter[str] = collections.Counter()


def _is_tcp(store: Any) -> bool:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return isinstance(store, TCPStore)


def _host(store: Any, ranks: list[int]) -> int:
    """The rank, within the group, whose process holds the store; -1 if none of them does."""
    if not _is_tcp(store) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return -1
    return ranks.index(0) if 0 in ranks else -1


def _device_backend(group: dist.ProcessGroup, store: Any, timeout: float) -> Optional[Any]:
    """NCCL, where it is the process group's for CUDA. Else bytes go through the host."""
    try:
        name = group._get_backend(torch.device("cuda")).name()
    except RuntimeError:
        return None
    if name != "nccl":
        return None
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    # Our own limit comes first: it names the silent rank, where NCCL would end the process.
    options._timeout = datetime.timedelta(seconds=2 * timeout + 60)
    return dist.ProcessGroupNCCL(PrefixStore("nccl", store), group.rank(), group.size(), options)


def connect(group: dist.ProcessGroup, timeout: float,
            device: Optional[torch.device] = None) -> dict[str, Any]:
    """The arguments of a native attachment that say where the workers are. Collective.

    With the device of the gradients also those that say how it reaches the others' devices.
    """
    found: dict[str, Any] = {"process_group": group, "backend": None, "store": None, "host": -1,
                             "timeout": timeout}
    if device is not None:
        found.update(device=device, data=None, streams=bool(STREAMS))
    if group.size() == 1:
        return found
    ranks = dist.get_process_group_ranks(group)
    store = c10d._get_default_store()
    name = f"{group.group_name}/{'-'.join(map(str, ranks)) if len(ranks) < 64 else len(ranks)}"
    own = PrefixStore(f"thinwire/{name}/{_made[name]}", store)
    _made[name] += 1
    found["store"], found["host"] = own, _host(store, ranks)
    found["backend"] = dist.ProcessGroupGloo(own, group.rank(), group.size(),
                                             datetime.timedelta(seconds=timeout))
    if device is not None and device.type == "cuda":
        found["data"] = _device_backend(group, own, timeout)
    elif device is not None and STREAMS == "data":
        found["data"] = dist.ProcessGroupGloo(PrefixStore("data", own), group.rank(), group.size(),
                                              datetime.timedelta(seconds=timeout))
    _all_connected(own, group, timeout)
    return found


def _all_connected(store: Any, group: dist.ProcessGroup, timeout: float) -> None:
    """Waits until no rank is connecting any more.

    A rank whose attachment is refused closes its connections. A rank that is still connecting then
    would blame the network, and not say why the attachment is refused.
    """
    store.set(f"connected/{group.rank()}", "")
    store.wait([f"connected/{rank}" for rank in range(group.size())],
               datetime.timedelta(seconds=timeout))


def meeting_device(group: dist.ProcessGroup, device: torch.device) -> torch.device:
    """Where tensors must be for the group's collectives: the CPU, if it takes them there."""
    try:
        group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return device
    return torch.device("cpu")


def timeout_of(group: dist.ProcessGroup, wish: Optional[float]) -> float:
    """Seconds that a rank may be silent: `wish`, or the process group's own timeout."""
    if wish is not None:
        if wish <= 0:
            raise ValueError(f"timeout={wish}: expected seconds above 0")
        return float(wish)
    for kind in ("cpu", "cuda"):
        try:
            options = getattr(group._get_backend(torch.device(kind)), "options", None)
        except RuntimeError:  # it has none for that kind of tensor
            continue
        if options is not None:
            return float(options._timeout.total_seconds())
    return float(c10d._get_default_timeout(c10d.Backend("gloo")).total_seconds())


class StoreBarrier:
    """A barrier over the job's store, at which every rank leaves a text for the others.

    It is not a collective, because ranks that have sent different numbers of messages would wait
    for each other in different collectives.
    """

    def __init__(self, store: Any, group: dist.ProcessGroup, timeout: float) -> None:
        self._store, self._timeout = store, timeout  # no store: one worker
        self._rank, self._world = group.rank(), group.size()
        self._number = 0

    def gather(self, what: str, text: str, check: Callable[[], None] = lambda: None) -> list[str]:
        """The texts of all ranks, once all have called `what`.

        Calls `check` while it waits, which raises when a rank is known to be lost.
        """
        if self._store is None:
            return [text]
        self._number += 1
        keys = [f"barrier{self._number}/{rank}" for rank in range(self._world)]
        self._store.set(keys[self._rank], f"{what}\n{text}")
        end = time.monotonic() + self._timeout
        while not self._store.check(keys):
            check()
            if time.monotonic() > end:
                self._miss(what, [rank for rank, key in enumerate(keys)
                                  if not self._store.check([key])])
            time.sleep(_POLL)
        told = [self._store.get(key).decode().split("\n", 1) for key in keys]
        for rank, (other, _) in enumerate(told):
            if other != what:
                self.fail(what, f"rank {rank} has called {other} instead; all ranks must call the "
                                "same")
        return [answer for _, answer in told]

    def fail(self, what: str, why: str) -> NoReturn:
        raise _native.Error(f"rank {self._rank}: {what}: {why}")

    def _miss(self, what: str, absent: list[int]) -> NoReturn:
        time.sleep(_GRACE)  # the store may be in this process
        self.fail(what, f"rank {', '.join(map(str, absent))} did not come within "
                        f"{self._timeout:g} s; all ranks must take the same number of steps and "
                        f"then call {what}")
