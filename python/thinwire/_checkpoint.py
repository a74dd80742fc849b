"""_checkpoint: links in torch.distributed.checkpoint (DCP).

DCP calls state_dict() of what it saves, and takes values of one name for the same on all ranks: it
keeps one of them. What a rank holds is its own. So whatever asks for a state inside of DCP gets a form
of one value with a name of its own, "rank_1_of_4".
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Mapping, Optional, Union

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import StorageReader

    from ._base import Base
    from ._delayed import DelayedLink

_NAME = re.compile(r"(?:(?P<key>.*)\.)?rank_(?P<rank>\d+)_of_(?P<world>\d+)")


def asked_by_dcp() -> bool:
    """Whether DCP is among our callers: it calls state_dict() of the link, or of what holds it."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(
        "torch.distributed.checkpoint"
    ):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def by_rank(shard: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"rank_{shard['rank']}_of_{shard['world']}": tuple(shard.items())
    }  # DCP takes no tuple apart


def unpacked(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plain form of a state, whichever it has."""
    name = next(iter(state), "")
    return dict(state[name]) if len(state) == 1 and _NAME.fullmatch(name) else state


def load_checkpoint(
    link: "Union[Base, DelayedLink]",
    checkpoint_id: Any = None,
    *,
    key: Optional[str] = None,
    storage_reader: Optional[StorageReader] = None,
) -> None:
    """Loads a link's state from a checkpoint of torch.distributed.checkpoint, also one of another
    number of ranks. All ranks call it.

    key  where the link is in the checkpoint: "link" after dcp.save({"link": link}, ...); not needed
         where there is one only
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    from ._state import merge_states

    reader = storage_reader if storage_reader is not None else FileSystemReader(checkpoint_id)
    shards: dict[str, dict[str, Any]] = {}  # by key, then by name in the checkpoint
    for name in reader.read_metadata().state_dict_metadata:
        found = _NAME.fullmatch(name)
        if found:
            shards.setdefault(found["key"] or "", {})[name] = None
    if key is None and len(shards) == 1:
        key = next(iter(shards))
    if key is None or key not in shards:
        raise ValueError(
            f"load_checkpoint: expected the state of a link under key={key!r}, the checkpoint has "
            f"links under {sorted(shards)}; "
            "save one by dcp.save({'link': link, ...}), and say which by key="
        )
    load(shards[key], storage_reader=reader)
    link.load_state_dict(merge_states([dict(shard) for shard in shards[key].values()]))
