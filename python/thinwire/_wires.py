"""_wires: the connections of a link: a Gloo backend of its own beside DDP's process group, and the job's store.

Of its own, because DDP goes on using its group meanwhile (buffers, unused parameters, join), and because a link that has lost
a rank closes its connections, so that the others see it at once.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import collections
import datetime
import os
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import distributed_c10d as c10d

_links: collections.Counter[str] = collections.Counter()  # made so far, by group: every rank makes them in the same order


def _is_tcp(store: Any) -> bool:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return isinstance(store, TCPStore)


def _host(store: Any, ranks: list[int]) -> int:
    """The rank, within the group, whose process holds the store; -1 where none of them does."""
    if not _is_tcp(store) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return -1
    return ranks.index(0) if 0 in ranks else -1


def connect(group: dist.ProcessGroup, timeout: float) -> dict[str, Any]:
    """The arguments of a native Link that say where the workers are. Collective within the group."""
    wires: dict[str, Any] = {"process_group": group, "backend": None, "store": None, "host": -1, "timeout": timeout}
    if group.size() == 1:
        return wires
    ranks = dist.get_process_group_ranks(group)
    store = c10d._get_default_store()
    name = f"{group.group_name}/{'-'.join(map(str, ranks)) if len(ranks) < 64 else len(ranks)}"
    own = PrefixStore(f"thinwire/{name}/{_links[name]}", store)
    _links[name] += 1
    wires["store"], wires["host"] = own, _host(store, ranks)
    wires["backend"] = dist.ProcessGroupGloo(own, group.rank(), group.size(), datetime.timedelta(seconds=timeout))
    return wires


def timeout_of(group: dist.ProcessGroup, wish: Optional[float]) -> float:
    """Seconds that a rank may be silent: as given, else the process group's own."""
    if wish is not None:
        if wish <= 0:
            raise ValueError(f"timeout={wish}: expected seconds above 0")
        return float(wish)
    options = getattr(group._get_backend(torch.device("cpu")), "options", None)
    limit = options._timeout if options is not None else c10d._get_default_timeout(c10d.Backend("gloo"))
    return float(limit.total_seconds())
