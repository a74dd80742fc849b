"""_shares: the gradients of virtual workers between their backward and the exchange.

All workers run on one model, so each in turn has its parameters' .grad. When a share ends, its
gradients move to flat memory of that worker, and .grad shows that memory until the next share or
the exchange: whoever changes it meanwhile is found out, by way of .data too once all workers had a
share. A worker's share begins with what .grad and the model's buffers were before the first share
of the step, as in a process of its own.

The buckets are DDP's: one per type in the first step, then cut anew in the order in which worker
0's gradients came.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import torch
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size as _assignment

from ._state import order_of

Gradients = list[Optional[torch.Tensor]]  # by parameter

_MEGABYTE = 1 << 20
_FIRST_BYTES = 1 << 20  # of DDP's first bucket, unless it is told a size
_BUCKET_MB = 25.0


class Layout:
    """Which parameters lie in which bucket."""

    def __init__(self, parameters: list[torch.Tensor], bucket_cap_mb: Optional[float],
                 find_unused: bool) -> None:
        self._parameters = parameters
        most = int((_BUCKET_MB if bucket_cap_mb is None else bucket_cap_mb) * _MEGABYTE)
        first = _FIRST_BYTES if bucket_cap_mb is None else most
        self._limits = [first, most] if first < most else [most]
        self._settled = find_unused  # then DDP keeps its first cut
        limits = self._limits if find_unused else [sys.maxsize]
        self.buckets = self._cut(range(len(parameters)), limits, ordered=False)[::-1]

    def _cut(self, order: Sequence[int], limits: list[int], ordered: bool) -> list[list[int]]:
        given = list(order)
        tensors = [self._parameters[i] for i in given]
        found, _ = _assignment(tensors, limits, [False] * len(tensors), given if ordered else [])
        return [list(bucket) for bucket in found]

    def settle(self, arrived: Sequence[int]) -> bool:
        """After the first step. Returns whether the buckets are others now."""
        if self._settled:
            return False
        self._settled = True
        self.buckets = self._cut(arrived, self._limits, ordered=True)
        return True


class Memory:
    """Flat gradients of one worker, and by parameter its part of them."""

    def __init__(self, parameters: list[torch.Tensor], buckets: list[list[int]]) -> None:
        self.flats: list[torch.Tensor] = []
        self.parts: list[torch.Tensor] = [torch.empty(0)] * len(parameters)
        for bucket in buckets:
            sizes = [parameters[i].numel() for i in bucket]
            first = parameters[bucket[0]]
            flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
            self.flats.append(flat)
            for i, part in zip(bucket, torch.split(flat, sizes)):
                self.parts[i] = _shaped(part, parameters[i])
        self._words = [part for flat in self.flats for part in _words_of(flat)]
        self.filled = [False] * len(parameters)  # in this step
        self.used = [False] * len(parameters)  # by a backward of this step

    def forget(self) -> None:
        self.filled = [False] * len(self.filled)
        self.used = [False] * len(self.used)

    def complete(self) -> None:
        """What this worker has not used is zeros."""
        empty = [part for part, filled in zip(self.parts, self.filled) if not filled]
        if empty:
            torch._foreach_zero_(empty)

    def take(self, gradients: Gradients) -> Gradients:
        """Moves gradients here. Returns what .grad shows from now on."""
        fresh: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for i, (gradient, part) in enumerate(zip(gradients, self.parts)):
            self.filled[i] = gradient is not None
            if gradient is not None and gradient is not part:
                fresh[0].append(part)
                fresh[1].append(gradient)
        if fresh[0]:
            with torch.no_grad():  # create_graph=True gives gradients a history
                torch._foreach_copy_(*fresh)
        return self.shown()

    def shown(self) -> Gradients:
        return [part if filled else None for part, filled in zip(self.parts, self.filled)]

    def versions(self) -> list[int]:
        """Any change in place of flat memory, or of a part of it, changes these, but for one by way
        of .data, which has a version of its own."""
        return [flat._version for flat in self.flats]

    def sums(self) -> list[int]:
        """Of the bits. Any change should change these. They cost a pass over the memory."""
        found: list[int] = torch.stack([words.sum() for words in self._words]).tolist()
        return found


def _words_of(flat: torch.Tensor) -> list[torch.Tensor]:
    """The memory of a flat tensor as integers, without a copy: such sums have no rounding, and NaN
    is like any value. Of 64 bits, whose sum torch makes ten times as fast as one of 32."""
    octets = flat.view(torch.uint8)
    end = len(octets) // 8 * 8
    return [octets[:end].view(torch.int64), octets[end:]]


def _shaped(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """In the parameter's order of memory, as DDP has it."""
    order = order_of(parameter)
    if order is None:
        return part.view(parameter.shape)
    return part.as_strided(order[0], order[1], part.storage_offset())


class Buffers:
    """The model's buffers in turn of each worker. Before each step all workers have worker 0's, as
    DDP broadcasts them; between shares they are worker 0's. The tensors in the model stay.

    Versions do not tell what has changed: BatchNorm changes its statistics without a new one.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._places: list[tuple[dict[str, Any], str]] = []
        self._start: Gradients = []  # of this step
        self._own: dict[int, Gradients] = {}  # of workers that had a share in this step
        self._inside = 0  # whose the model has now
        self._given: Gradients = []  # ... and what these were when its share began
        self._of_first: Gradients = []  # while another worker is inside: worker 0's tensors ...
        self._values: Gradients = []  # ... and their values

    def begin(self) -> None:
        """Before the first share of a step."""
        self._places = [(module._buffers, key) for module in self._model.modules()
                        for key in module._buffers]
        self._own, self._start = {}, _copies(self._now())

    def enter(self, number: int) -> None:
        if number > 0:
            self._of_first, self._values = self._now(), self._changed(self._start)
            self._given, self._inside = self._own.get(number, self._start), number
            self._put(self._given)

    def leave(self) -> None:
        number, self._inside = self._inside, 0
        if number > 0:
            self._own[number] = self._changed(self._given)
            for (owner, key), tensor in zip(self._places, self._of_first):
                owner[key] = tensor
            self._put(self._values)

    def _now(self) -> Gradients:
        return [owner.get(key) for owner, key in self._places]

    def _changed(self, known: Gradients) -> Gradients:
        """Of the buffers as they are; what is still as `known`, a large mask perhaps, is not copied
        again."""
        same = [_equal(now, old) for now, old in zip(self._now(), known)]
        copies = _copies([None if alike else now for now, alike in zip(self._now(), same)])
        return [old if alike else copy for old, copy, alike in zip(known, copies, same)]

    def _put(self, values: Gradients) -> None:
        there, given = [], []
        for (owner, key), value in zip(self._places, values):
            now = owner.get(key)
            if value is None or now is None or now.shape != value.shape:
                owner[key] = _copies([value])[0]
            elif not _equal(now, value):
                there.append(now)
                given.append(value)
        _write(there, given)


def _copies(tensors: Gradients) -> Gradients:
    copies = [one if one is None else torch.empty_like(one.detach())
              if one.layout is torch.strided else one.detach().clone() for one in tensors]
    given = [(to, one) for to, one in zip(copies, tensors)
             if to is not None and one is not None and one.layout is torch.strided]
    _write([to for to, _ in given], [one for _, one in given])
    return copies


def _write(there: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copies all tensors of a type at once: BatchNorm has many small ones, and on a GPU each copy
    would be a kernel of its own."""
    kinds: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for to, value in zip(there, values):
        both = kinds.setdefault((to.device, to.dtype, value.device, value.dtype), ([], []))
        both[0].append(to)
        both[1].append(value)
    with torch.no_grad():
        for to_all, value_all in kinds.values():
            torch._foreach_copy_(to_all, value_all)


def _equal(one: Optional[torch.Tensor], other: Optional[torch.Tensor]) -> bool:
    """Whether no copy is needed. On a device a copy takes less time than the answer, for which the
    host would wait."""
    if one is None or other is None:
        return one is other
    if one.device.type != "cpu":
        return False
    return (one.layout == other.layout == torch.strided and one.dtype == other.dtype
            and torch.equal(one, other))


# -- cutting a batch


def cut_batch(batch: Any, workers: int) -> list[Any]:
    """Cuts all tensors of a batch along their first dimension, in tuples, lists and mappings of any
    depth. Parts differ by one row at most."""
    rows = sorted({len(tensor) for tensor in _tensors(batch, "the batch")})
    if len(rows) != 1:
        what = "no tensors" if not rows else f"tensors of {' and '.join(map(str, rows))} rows"
        raise ValueError(f"shares: the batch has {what}; expected tensors of as many rows each. "
                         f"Give one batch per worker instead: shares(*batches)")
    if rows[0] < workers:
        raise ValueError(f"shares: {rows[0]} rows for {workers} workers; give each worker at least "
                         "one: a larger batch, or drop_last=True in the DataLoader")
    bounds = [rows[0] * i // workers for i in range(workers + 1)]
    return [_part(batch, *span) for span in zip(bounds, bounds[1:])]


def _tensors(value: Any, where: str) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        return [value]
    if isinstance(value, Mapping):
        parts = [(f"{where}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, (tuple, list)):
        parts = [(f"{where}[{i}]", part) for i, part in enumerate(value)]
    elif value is None:
        return []
    else:
        raise TypeError(f"shares: {where} is a {type(value).__name__}, which has no rows to cut; "
                        "expected tensors, in tuples, lists and mappings. Give one batch per "
                        "worker instead: shares(*batches)")
    return [tensor for name, part in parts for tensor in _tensors(part, name)]


def _part(value: Any, begin: int, end: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[begin:end]
    if isinstance(value, Mapping):
        parts = {key: _part(part, begin, end) for key, part in value.items()}
        return parts if type(value) is dict else type(value)(parts)  # type: ignore[call-arg]
    if isinstance(value, (tuple, list)):
        found = [_part(part, begin, end) for part in value]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    return value
