"""_state: what a link keeps, as a dictionary for torch.save, and how it is shared out among another number of workers.

A shard is one rank's: {"version", "scheme", "world", "rank", "layout", "steps", "entries", "shares",
"count"}; entries are tensors and numbers by name ("layer.weight/v"), `count` is how many. All shards of
a job together are a whole: {"version", "world", "shards"}. Both hold plain types only, so
torch.load(weights_only=True) reads them. _checkpoint.py has the form for torch.distributed.checkpoint.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

import torch

from ._checkpoint import asked_by_dcp, by_rank, unpacked

VERSION = 1
SUMMED, REPLICATED, LOCAL = 0, 1, 2  # core/state.h
DELAY = "delay"  # in shards of delayed averaging: its settings
Entries = dict[str, tuple[int, Any]]


def shard_of(entries: Entries, **about: Any) -> dict[str, Any]:
    shard = {"version": VERSION, **about, "count": len(entries),
             "entries": {name: value for name, (_, value) in entries.items()},
             "shares": {name: share for name, (share, _) in entries.items()}}
    return by_rank(shard) if asked_by_dcp() else shard


def entries_in(shard: Mapping[str, Any]) -> Entries:
    if shard.get("count") and not shard["entries"]:
        raise ValueError(f"load_state_dict: expected {shard['count']} entries in the state of rank "
                         f"{shard['rank']} of {shard['world']}, got none. Did "
                         "torch.distributed.checkpoint save link.state_dict()? It keeps one rank's "
                         "only: give it the link itself (docs/pytorch.md, 'Checkpoints')")
    return {name: (shard["shares"][name], value) for name, value in shard["entries"].items()}


def merge_states(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state out of the state_dict() of every rank. Loads with any number of workers: residuals keep their sum."""
    if not shards:
        raise ValueError("merge_states: expected the states of all ranks, got none")
    ordered = sorted(shards, key=lambda shard: int(shard["rank"]))
    world = int(ordered[0]["world"])
    ranks = [int(shard["rank"]) for shard in ordered]
    if ranks != list(range(world)) or any(int(shard["world"]) != world for shard in ordered):
        raise ValueError(f"merge_states: expected the states of ranks 0 to {world - 1} of one job, got those of ranks {ranks} "
                         f"(worlds {sorted({int(shard['world']) for shard in ordered})})")
    steps = {int(shard["steps"]) for shard in ordered}
    if len(steps) != 1:
        raise ValueError(f"merge_states: the states are of different steps: {sorted(steps)}")
    return {"version": VERSION, "world": world, "shards": [dict(shard) for shard in ordered]}


def shard_for(state: Mapping[str, Any], rank: int, world: int) -> dict[str, Any]:
    """What this rank of this world is to load."""
    state = unpacked(state)
    if state.get("version") != VERSION:
        raise ValueError(f"load_state_dict: expected a thinwire state of version {VERSION}, got {state.get('version')}")
    if "shards" in state:
        shards = state["shards"]
        return dict(shards[rank]) if len(shards) == world else _resharded(shards, rank, world)
    if int(state["world"]) != world or int(state["rank"]) != rank:
        raise ValueError(f"load_state_dict: this is the state of rank {state['rank']} of {state['world']}, this is rank {rank} of "
                         f"{world}; load the whole: link.full_state_dict(), or thinwire.merge_states() of all ranks' states")
    return dict(state)


OWNED = re.compile(r"(?P<parameter>.+?)(\[(?P<first>\d+):\d+\])?/owner/v", re.DOTALL)


def _folded(shards: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Shards without owners (exchange="split"), since other workers own other parts. Their residuals
    are put into the ranks' own: they are of averages, so each counts once per worker of the old job."""

    def without_owners(items: Mapping[str, Any]) -> dict[str, Any]:
        return {name: item for name, item in items.items() if "/owner" not in name}

    parts = [(rank, found["parameter"], int(found["first"] or 0), value)
             for rank, shard in enumerate(shards) for name, value in shard["entries"].items()
             if (found := OWNED.fullmatch(name))]
    result = [{**shard, "entries": without_owners(shard["entries"]),
               "shares": without_owners(shard["shares"])} for shard in shards]
    for parameter in {parameter for _, parameter, _, _ in parts}:
        size = max(first + value.numel() for _, of, first, value in parts if of == parameter)
        for shard in result:
            own = shard["entries"].get(parameter + "/v")
            shard["entries"][parameter + "/v"] = torch.zeros(size) if own is None else own.clone()
            shard["shares"][parameter + "/v"] = SUMMED
    for rank, parameter, first, value in parts:
        own = result[rank]["entries"][parameter + "/v"]
        own[first:first + value.numel()] += len(shards) * value
    return result


def _resharded(shards: Sequence[Mapping[str, Any]], rank: int, world: int) -> dict[str, Any]:
    """Old ranks are dealt out to new ones. Every sum stays; thresholds of single buckets are found anew."""
    shards = _folded(shards)
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
    own = ("version", "entries", "shares", "count")
    about = {key: value for key, value in shards[0].items() if key not in own}
    return shard_of(result, **{**about, "rank": rank, "world": world})
