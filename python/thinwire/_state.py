"""_state: the state of an attachment, as a dictionary for torch.save and for
torch.distributed.checkpoint (DCP), and how another number of workers shares it out.

A shard is one rank's: {"version", "scheme", "world", "rank", "layout", "steps", "entries",
"shares", "count"}. Entries are tensors and numbers by name ("layer.weight/v"), `count` is how many.
All shards of a job make a whole: {"version", "world", "shards"}. Both hold plain types only, so
torch.load(weights_only=True) reads them.

DCP calls state_dict() of what it saves, and takes values of one name to be the same on all ranks:
it keeps one of them. Each rank's shard differs, so DCP gets a form of one value with a name of its
own, "rank_1_of_4".
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Union

import torch

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import StorageReader

    from ._base import Base
    from ._delayed import DelayedHandle

VERSION = 1
SUMMED, REPLICATED, LOCAL = 0, 1, 2  # core/state.h
ORDERS = "orders"  # in shards with owners: shape and strides of parameters not stored by index
BEFORE = "before"  # in shards for another number of workers: the number that saved them
DELAY = "delay"  # in shards of delayed averaging: its settings
Entries = dict[str, tuple[int, Any]]

_NAME = re.compile(r"(?:(?P<key>.*)\.)?rank_(?P<rank>\d+)_of_(?P<world>\d+)")
_OWNED = re.compile(r"(?P<parameter>.+?)(\[(?P<first>\d+):\d+\])?/owner/v", re.DOTALL)


def _asked_by_dcp() -> bool:
    """Whether DCP is among our callers: it calls state_dict() of the handle or of its holder."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(
            "torch.distributed.checkpoint"):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def unpacked(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plain form of a state, whatever form it has."""
    name = next(iter(state), "")
    return dict(state[name]) if len(state) == 1 and _NAME.fullmatch(name) else state


def shard_of(entries: Entries, **about: Any) -> dict[str, Any]:
    shard = {"version": VERSION, **about, "count": len(entries),
             "entries": {name: value for name, (_, value) in entries.items()},
             "shares": {name: share for name, (share, _) in entries.items()}}
    if _asked_by_dcp():  # DCP does not look inside a tuple
        return {f"rank_{shard['rank']}_of_{shard['world']}": tuple(shard.items())}
    return shard


def about(shard: Mapping[str, Any]) -> dict[str, Any]:
    """What a shard says beside its entries."""
    own = ("version", "entries", "shares", "count")
    return {key: value for key, value in shard.items() if key not in own}


def entries_in(shard: Mapping[str, Any]) -> Entries:
    if shard.get("count") and not shard["entries"]:
        raise ValueError(f"load_state_dict: expected {shard['count']} entries in the state of rank "
                         f"{shard['rank']} of {shard['world']}, got none. Did "
                         "torch.distributed.checkpoint save handle.state_dict()? It keeps only one "
                         "rank's state: give it the handle itself (docs/howto/checkpoints.md)")
    return {name: (shard["shares"][name], value) for name, value in shard["entries"].items()}


def merge_states(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the state_dict() of every rank into one state.

    It loads with any number of workers: residuals keep their sum.
    """
    if not shards:
        raise ValueError("merge_states: expected the states of all ranks, got none")
    ordered = sorted(shards, key=lambda shard: int(shard["rank"]))
    world = int(ordered[0]["world"])
    ranks = [int(shard["rank"]) for shard in ordered]
    if ranks != list(range(world)) or any(int(shard["world"]) != world for shard in ordered):
        raise ValueError(f"merge_states: expected the states of ranks 0 to {world - 1} of one job, "
                         f"got those of ranks {ranks} "
                         f"(worlds {sorted({int(shard['world']) for shard in ordered})})")
    steps = {int(shard["steps"]) for shard in ordered}
    if len(steps) != 1:
        raise ValueError(f"merge_states: the states are of different steps: {sorted(steps)}")
    return {"version": VERSION, "world": world, "shards": [dict(shard) for shard in ordered]}


def shard_for(state: Mapping[str, Any], rank: int, world: int) -> dict[str, Any]:
    """The shard that this rank of this world must load."""
    state = unpacked(state)
    if state.get("version") != VERSION:
        raise ValueError(f"load_state_dict: expected a thinwire state of version {VERSION}, got "
                         f"{state.get('version')}")
    if "shards" in state:
        shards = state["shards"]
        return dict(shards[rank]) if len(shards) == world else _resharded(shards, rank, world)
    if int(state["world"]) != world or int(state["rank"]) != rank:
        raise ValueError(f"load_state_dict: this is the state of rank {state['rank']} of "
                         f"{state['world']}, but this is rank {rank} of {world}; load the whole: "
                         "handle.full_state_dict(), or thinwire.merge_states() of all states")
    return dict(state)


def order_of(parameter: torch.Tensor) -> Optional[list[list[int]]]:
    """Shape and strides of a parameter whose elements lie in memory in another order than by index
    (channels_last); None for others."""
    extent = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape)):
        if size > 1 and stride != extent:
            return None  # not dense: DDP lays it out by index
        extent *= size
    return None if parameter.is_contiguous() else [list(parameter.shape), list(parameter.stride())]


def has_owners(shard: Mapping[str, Any]) -> bool:
    return any("/owner" in name for name in shard["entries"])


def without_owners(shards: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Shards without owners (exchange="split"), because in another job other workers own other
    parts. The owners' residuals are added to the ranks' own. They belong to averages, so each
    counts once per worker of the old job."""

    def others(items: Mapping[str, Any]) -> dict[str, Any]:
        return {name: item for name, item in items.items() if "/owner" not in name}

    parts = [(rank, found["parameter"], int(found["first"] or 0), value)
             for rank, shard in enumerate(shards) for name, value in shard["entries"].items()
             if (found := _OWNED.fullmatch(name))]
    result = [{**shard, "entries": others(shard["entries"]),
               "shares": others(shard["shares"])} for shard in shards]
    for parameter in {parameter for _, parameter, _, _ in parts}:
        size = max(first + value.numel() for _, of, first, value in parts if of == parameter)
        for shard in result:
            own = shard["entries"].get(parameter + "/v")
            shard["entries"][parameter + "/v"] = torch.zeros(size) if own is None else own.clone()
            shard["shares"][parameter + "/v"] = SUMMED
    for rank, parameter, first, value in parts:
        own = result[rank]["entries"][parameter + "/v"]
        part = torch.zeros_like(own)  # in the order of memory, as owners' parts are
        part[first:first + value.numel()] = len(shards) * value
        order = shards[rank].get(ORDERS, {}).get(parameter)
        own += part if order is None else part.as_strided(*order).reshape(-1)
    return result


def _resharded(shards: Sequence[Mapping[str, Any]], rank: int, world: int) -> dict[str, Any]:
    """Distributes the old ranks' shards over the new ranks. Every sum is preserved; thresholds
    of single buckets settle again."""
    shards = without_owners(shards)
    mine = [shard for i, shard in enumerate(shards) if i % world == rank]
    result: Entries = {}
    for name, (share, value) in entries_in(shards[0]).items():
        if share == REPLICATED:
            result[name] = (share, value)
        elif share == SUMMED:
            total = torch.zeros_like(value)
            for shard in mine:
                total += shard["entries"][name]
            result[name] = (share, total)
        elif isinstance(value, torch.Tensor) and rank < len(shards):
            result[name] = (share, shards[rank]["entries"][name])
        elif name.endswith("/m"):  # a new worker's running mean; all must know that there is one
            result[name] = (share, torch.zeros_like(value))
    before = shards[0].get(BEFORE, len(shards))  # not stepped since it was resharded before
    return shard_of(result, **{**about(shards[0]), "rank": rank, "world": world, BEFORE: before})


def load_checkpoint(handle: Union[Base, DelayedHandle], checkpoint_id: Any = None, *,
                    key: Optional[str] = None,
                    storage_reader: Optional[StorageReader] = None) -> None:
    """Loads the state of a handle, or HookState, from a checkpoint of torch.distributed.checkpoint.

    The checkpoint may be of another number of ranks. All ranks call it.

    key  where the handle is in the checkpoint: "thinwire" after dcp.save({"thinwire": handle});
         not needed if the checkpoint has one handle only
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = storage_reader if storage_reader is not None else FileSystemReader(checkpoint_id)
    shards: dict[str, dict[str, Any]] = {}  # by key, then by name in the checkpoint
    for name in reader.read_metadata().state_dict_metadata:
        found = _NAME.fullmatch(name)
        if found:
            shards.setdefault(found["key"] or "", {})[name] = None
    if key is None and len(shards) == 1:
        key = next(iter(shards))
    if key is None or key not in shards:
        raise ValueError(f"load_checkpoint: expected the state of a handle under key={key!r}, the "
                         f"checkpoint has handles under {sorted(shards)}; save one by "
                         "dcp.save({'thinwire': handle, ...}), and say which by key=")
    load(shards[key], storage_reader=reader)
    handle.load_state_dict(merge_states([dict(shard) for shard in shards[key].values()]))
