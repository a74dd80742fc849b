"""_reports: what every kind of link tells: reports, callbacks, lines of log."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import weakref
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from ._log import logger

Callback = Callable[[dict[str, Any]], None]

_VOID_IN_A_ROW = 10

# Beside the models and not in them, which programs copy and save.
_attached: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
_delayed: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # of them, those with delay=


def is_attached(model: torch.nn.Module) -> bool:
    return model in _attached or _share(model, _delayed)


def shares_parameters(model: torch.nn.Module) -> bool:
    """Whether some model with a link has a parameter of this one."""
    return _share(model, _attached)


def _share(model: torch.nn.Module, others: weakref.WeakSet[torch.nn.Module]) -> bool:
    mine = set(model.parameters())
    return any(not mine.isdisjoint(other.parameters()) for other in others)


def mark(model: torch.nn.Module, attached: bool) -> None:
    (_attached.add if attached else _attached.discard)(model)


def mark_delayed(model: torch.nn.Module, attached: bool) -> None:
    (_delayed.add if attached else _delayed.discard)(model)


class Reports:
    """Around a native link, which has report() and step_report()."""

    _text: str

    def __init__(self, callback: Optional[Callback]) -> None:
        self._group: Optional[dist.ProcessGroup] = None
        self._callbacks: list[tuple[int, Callback]] = [(1, callback)] if callback else []
        self._void_in_a_row = 0

    @property
    def _native(self) -> Any:
        raise NotImplementedError

    @property
    def scheme(self) -> str:
        """The scheme with its options, as text."""
        return self._text

    def report(self) -> dict[str, Any]:
        """Sums since the start: steps, skipped, bytes, ratio, seconds by stage."""
        return dict(self._native.report())

    @property
    def step_report(self) -> dict[str, Any]:
        """The same of the last step alone."""
        return dict(self._native.step_report())

    def on_step(self, callback: Callback, every: int = 1) -> None:
        """Calls `callback` with the step's report after every so many steps, on every rank."""
        self._callbacks.append((max(1, every), callback))

    def log_to(self, writer: Any, every: int = 10, prefix: str = "thinwire") -> None:
        """Writes scalars to a TensorBoard writer (or anything with add_scalar), on every rank that calls it. A path makes one, if
        tensorboard is installed, on rank 0 of the group only: one folder is one curve."""
        path = writer if isinstance(writer, str) else None
        if path is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError("log_to: writing to a path needs the package tensorboard; install it, or give a writer") from error
            writer = None

        def write(report: dict[str, Any]) -> None:
            nonlocal writer
            if path is not None and writer is None:
                if self._group is None or self._group.rank() != 0:
                    return
                writer = SummaryWriter(path)
            for key in ("ratio", "payload_bytes", "sent_bytes", "encode_seconds", "wait_seconds", "decode_seconds", "skipped"):
                writer.add_scalar(f"{prefix}/{key}", float(report[key]), report["step"])
            if path is not None:
                writer.flush()  # nobody else can, should the training die

        self.on_step(write, every)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Reports":
        return self  # a connection: a copy of what holds it (a module, for EMA) shares it

    def __getstate__(self) -> dict[str, Any]:
        if getattr(self, "_link", None) is not None:
            raise TypeError(f"a {type(self).__name__} of thinwire is connected with other processes "
                            "and cannot be pickled; save its state_dict() instead")
        return dict(self.__dict__)

    def _tell(self, report: dict[str, Any]) -> None:
        for every, callback in self._callbacks:
            if report["step"] % every == 0:
                callback(report)

    def _count(self, void: bool) -> None:
        self._void_in_a_row = self._void_in_a_row + 1 if void else 0
        if self._void_in_a_row == _VOID_IN_A_ROW:
            logger.warning("%d steps in a row were void: gradients are not finite. With a GradScaler, give it to attach(scaler=...)",
                           _VOID_IN_A_ROW)

    def _say(self, text: str, *values: Any) -> None:
        if self._group is None or self._group.rank() == 0:
            logger.info(text, *values)
