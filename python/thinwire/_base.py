"""_base: what links and plain hook states have in common: reports, schemes, checkpoints, the optimizer beside them."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Mapping, Optional, Union

import torch
import torch.distributed as dist

from . import _native, _wires
from ._log import logger, prepare
from ._momentum import Optimizer
from ._options import options_of, text_of, with_momentum
from ._reports import Callback, Reports
from ._state import DELAY, REPLICATED, SUMMED, Entries, entries_in, merge_states, shard_for, shard_of

Scheme = Union[str, Mapping[str, Any]]


def check_parameters(named: list[tuple[str, torch.Tensor]]) -> None:
    for name, parameter in named:
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ValueError(f"parameter '{name}': expected float32 on the CPU, got {parameter.dtype} on {parameter.device}; keep "
                             "parameters in float32 and compute in bfloat16 by torch.autocast")
    if not named:
        raise ValueError("the model has no parameters that require gradients")


class Base(Reports):
    """What links and plain hook states have in common: everything but how they come to their buckets."""

    def __init__(self, scheme: str, *, exchange: str, fuse_mb: float, timeout: Optional[float], check_every: int,
                 scaler: Any, callback: Optional[Callback], options: dict[str, Any]) -> None:
        prepare()
        super().__init__(callback)
        self._text = _native.config(text_of(scheme, options))
        self._exchange, self._fuse_bytes = exchange, int(fuse_mb * 1e6)
        self._timeout, self._check_every = timeout, check_every
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._link: Optional[_native.Link] = None
        self._optimizer: Optional[Optimizer] = None
        self._names: dict[torch.Tensor, str] = {}
        self._loaded: Optional[dict[str, Any]] = None
        self._schedule: list[tuple[int, Scheme]] = []
        if self._scaler is not None and float(options_of(self._text).get("clip", 0)) != 0:
            raise ValueError(f"scheme '{self._text}' clips gradients, which a GradScaler has multiplied by its scale; give one of the two")

    def residual_norms(self) -> dict[str, float]:
        """Per parameter: the norm of what this rank has not sent yet."""
        return {name[: -len("/v")]: float(torch.linalg.vector_norm(value)) for name, (share, value) in self._native.state().items()
                if share == SUMMED and name.endswith("/v")}

    def on_step(self, callback: Callback, every: int = 1) -> None:
        super().on_step(callback, every)
        if self._link is not None:
            self._link.on_step(self._tell)

    # -- scheme

    def set_scheme(self, scheme: Optional[str] = None, **options: Any) -> None:
        """Another scheme, or other options of this one, from the next step on. All ranks call it between the same steps.

        What was not sent yet goes over to the new scheme, or into the next gradient where that keeps nothing.
        """
        text = _native.config(text_of(scheme if scheme is not None else self._text, options))
        if self._optimizer is not None:
            text = _native.config(self._optimizer.text_for(text))
        else:
            text = with_momentum(text, None)
        keeps = _native.keeps_momentum(text)
        if self._link is None:
            self._text = text
            return
        velocity: dict[str, torch.Tensor] = {}
        if self._optimizer is not None and self._optimizer.taken and not keeps:
            self._optimizer.restore(self._mean_velocity())
        elif self._optimizer is not None and not self._optimizer.taken and keeps:
            velocity = self._optimizer.take(text)
        self._link.set_scheme(text, self._exchange, self._fuse_bytes)
        self._hand_over(velocity)
        self._text = text
        self._say("scheme is %s from step %d on", text, self._link.steps() + 1)

    def schedule(self, plan: Mapping[int, Scheme]) -> None:
        """Changes by step: {500: "dgc:density=0.01", 2000: {"density": 0.001}}; after so many steps the change is made."""
        self._schedule = sorted(plan.items(), key=lambda item: item[0])

    def _mean_velocity(self) -> dict[str, torch.Tensor]:
        velocity: dict[str, torch.Tensor] = {}
        assert self._group is not None
        for name, (_, value) in sorted(self._native.state().items()):
            if name.endswith("/u"):
                mean = value / (self._group.size() * self._scale())
                dist.all_reduce(mean, group=self._group)
                velocity[name[: -len("/u")]] = mean
        return velocity

    def _hand_over(self, velocity: dict[str, torch.Tensor]) -> None:
        if not velocity:
            return
        entries = self._native.state()
        for name, value in velocity.items():
            entries[name + "/u"] = (SUMMED, (value * self._scale()).flatten())
        self._native.load(entries, self._native.layout())

    def _scale(self) -> float:
        return float(self._scaler.get_scale()) if self._scaler is not None else 1.0

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """This rank's shard: every rank saves its own. Between steps."""
        if self._link is None:
            if self._loaded is None:
                raise RuntimeError("state_dict: no step was taken yet, there is nothing to save")
            return self._loaded
        assert self._group is not None
        entries: Entries = self._link.state()
        if self._optimizer is not None:
            for name, memory in self._optimizer.memory.items():
                entries[name + "/decay"] = (REPLICATED, memory.clone())
        return shard_of(entries, scheme=self._text, world=self._group.size(), rank=self._group.rank(), layout=self._link.layout(),
                        steps=self._link.steps())

    def full_state_dict(self, dst: int = 0) -> Optional[dict[str, Any]]:
        """The shards of all ranks as one state, on rank `dst` of the group; None on the others. All ranks call it."""
        shard = self.state_dict()
        assert self._group is not None
        shards: Optional[list[Any]] = [None] * self._group.size() if self._group.rank() == dst else None
        dist.gather_object(shard, shards, dst=dist.get_global_rank(self._group, dst), group=self._group)
        return None if shards is None else merge_states(shards)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a shard of this rank, or a whole, which may be of another number of workers. Between steps."""
        if self._link is None:
            self._loaded = dict(state)
            return
        assert self._group is not None
        shard = shard_for(state, self._group.rank(), self._group.size())
        if DELAY in shard:
            raise ValueError("load_state_dict: this is the state of a link with delay=; attach with the same delay, or begin from the weights alone")
        if shard["scheme"] != self._text:
            self._say("state of scheme %s goes on with %s", shard["scheme"], self._text)
        entries = entries_in(shard)
        decay = {name: value for name, (_, value) in entries.items() if name.endswith("/decay")}
        if self._optimizer is not None:
            self._optimizer.memory = {name[: -len("/decay")]: value.clone() for name, value in decay.items()}
        self._link.load({name: entry for name, entry in entries.items() if name not in decay},
                        shard["layout"] if self._fits(shard["layout"]) else [])

    def _fits(self, layout: list[list[str]]) -> bool:
        mine = set(self._names.values())
        saved = {name for bucket in layout for name in bucket}
        if mine and saved != mine:
            if saved - mine:
                logger.warning("state for parameters that are frozen or gone is not used: %s", ", ".join(sorted(saved - mine)))
            if mine - saved:
                self._say("parameters that are new start without state: %s", ", ".join(sorted(mine - saved)))
            return False
        return True

    def check_replicas(self) -> None:
        """Raises when a parameter differs between ranks, and names both. All ranks call it between the same steps."""
        self._native.check_replicas()

    # -- the inside

    @property
    def _native(self) -> "_native.Link":
        if self._link is None:
            raise RuntimeError("no step was taken yet")
        return self._link

    def _connect(self, group: dist.ProcessGroup, named: list[tuple[str, torch.Tensor]]) -> None:
        self._group = group
        self._timeout = _wires.timeout_of(group, self._timeout)
        self._names = {parameter: name for name, parameter in named}
        self._link = _native.Link(**_wires.connect(group, self._timeout), names=named, scheme=self._text, exchange=self._exchange,
                                  fuse_bytes=self._fuse_bytes, void_as_nan=self._scaler is not None)
        if self._callbacks:
            self._link.on_step(self._tell)
        if self._scaler is not None:
            self._scaler.scale(torch.zeros(()))  # makes its scale, if it has none yet
            self._link.set_scale(self._scaler._scale)
        if self._loaded is not None:
            loaded, self._loaded = self._loaded, None
            self.load_state_dict(loaded)

    def _bind(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        self._optimizer = Optimizer(optimizer, self._names, self._is_void, self._after_step)
        try:
            self._text = _native.config(self._optimizer.text_for(self._text))
            return self._optimizer.take(self._text) if _native.keeps_momentum(self._text) else {}
        except Exception:
            self._optimizer.close()
            self._optimizer = None
            raise

    def _is_void(self) -> bool:
        void = self._link is not None and self._link.skipped()
        self._count(void)
        return void

    def _after_step(self) -> None:
        if self._link is None:
            return
        steps = self._link.steps()
        while self._schedule and self._schedule[0][0] <= steps:
            change = self._schedule.pop(0)[1]
            self.set_scheme(change) if isinstance(change, str) else self.set_scheme(**change)
        if self._check_every and steps % self._check_every == 0 and not self._joining():
            self._link.check_replicas()

    def _joining(self) -> bool:
        return False
