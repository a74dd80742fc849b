"""_reports: the output of handles and hook states: reports, callbacks, log lines.

THINWIRE_LOG=debug|info|warning|error|off sets the level of the logger "thinwire"; default: info.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
import os
import sys
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Union

import torch
import torch.distributed as dist

logger = logging.getLogger("thinwire")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING,
           "error": logging.ERROR, "off": logging.CRITICAL + 1}

_SKIPPED_IN_A_ROW = 10  # steps until a warning

# Beside the models and not in them, because programs copy and save models.
_attached: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
_delayed: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # those with delay=


def prepare_logger() -> None:
    """Sends log lines to stderr, unless the program has configured the logger or all
    logging itself."""
    wish = os.environ.get("THINWIRE_LOG", "").lower()
    if wish and wish not in _LEVELS:
        raise ValueError(f"THINWIRE_LOG={wish}: expected one of {', '.join(_LEVELS)}")
    if wish or logger.level == logging.NOTSET:
        logger.setLevel(_LEVELS[wish or "info"])
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("thinwire: %(message)s"))
        logger.addHandler(handler)


def is_attached(model: torch.nn.Module) -> bool:
    return model in _attached or _share(model, _delayed)


def shares_parameters(model: torch.nn.Module) -> bool:
    """Whether some attached model shares a parameter with this one."""
    return _share(model, _attached)


def _share(model: torch.nn.Module, others: weakref.WeakSet[torch.nn.Module]) -> bool:
    mine = set(model.parameters())
    return any(not mine.isdisjoint(other.parameters()) for other in others)


def mark(model: torch.nn.Module, attached: bool, delayed: bool = False) -> None:
    for models in (_attached, _delayed) if delayed else (_attached,):
        (models.add if attached else models.discard)(model)


def show_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def show_seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                      for i, (cell, width) in enumerate(zip(row, widths))) for row in rows]


def _seconds(report: Union[Report, StepReport]) -> str:
    return (f"encode {report.encode_seconds:.3g} s, wait {report.wait_seconds:.3g} s, "
            f"decode {report.decode_seconds:.3g} s")


@dataclass(frozen=True)
class Report:
    """Sums of this rank since the start of the run. print() it for a sentence;
    dataclasses.asdict() makes a dictionary of it, for JSON.

    steps           steps taken, skipped ones included
    skipped         steps without effect, because some rank's gradient was not finite
    payload_bytes   bytes that the scheme wrote
    dense_bytes     bytes of the same gradients as float32
    ratio           dense_bytes / payload_bytes
    sent_bytes      bytes that this rank sent, by the pattern of each collective
    received_bytes  bytes that this rank received
    collectives     collectives started
    encode_seconds, wait_seconds, decode_seconds
                    time in encoders, waiting for other ranks, and in decoders
    """

    steps: int
    skipped: int
    payload_bytes: int
    dense_bytes: int
    ratio: float
    sent_bytes: int
    received_bytes: int
    collectives: int
    encode_seconds: float
    wait_seconds: float
    decode_seconds: float

    def __str__(self) -> str:
        if self.steps == 0:
            return "no steps yet"
        per_step = f"{show_bytes(self.payload_bytes / self.steps)} per step"
        return (f"{self.steps} steps, {self.skipped} skipped; {per_step}, 1/{self.ratio:.3g} of "
                f"dense; {_seconds(self)}")


@dataclass(frozen=True)
class DelayedReport(Report):
    """The Report of a model under delayed averaging.

    messages   messages sent; each has the updates of local_steps steps
    in_flight  messages that are on their way now
    delay      steps after which a message is taken in
    """

    messages: int
    in_flight: int
    delay: int

    def __str__(self) -> str:
        return f"{super().__str__()}; delay {self.delay}, {self.in_flight} messages in flight"


@dataclass(frozen=True)
class StepReport:
    """What one step added to the Report, field by field.

    step     number of the step, from 1; a resumed run counts on
    skipped  whether the step was skipped
    """

    step: int
    skipped: bool
    payload_bytes: int
    dense_bytes: int
    ratio: float
    sent_bytes: int
    received_bytes: int
    collectives: int
    encode_seconds: float
    wait_seconds: float
    decode_seconds: float

    def __str__(self) -> str:
        sent = f"{show_bytes(self.payload_bytes)}, 1/{self.ratio:.3g} of dense"
        return f"step {self.step}: {'skipped' if self.skipped else sent}; {_seconds(self)}"


Callback = Callable[[StepReport], None]


class Reports:
    """Base of everything that has a native attachment with report() and step_report()."""

    _text: str
    _attachment: Any

    def __init__(self, callback: Optional[Callback]) -> None:
        self._group: Optional[dist.ProcessGroup] = None
        self._callbacks: list[tuple[int, Callback]] = [(1, callback)] if callback else []
        self._skipped_in_a_row = 0
        self._count_of_parameters = 0

    @property
    def _connected(self) -> Any:
        raise NotImplementedError

    @property
    def scheme(self) -> str:
        """The scheme with its options, as text: "dgc:density=0.001"."""
        return self._text

    def report(self) -> Report:
        """Sums of this rank since the start of the run: steps, bytes, ratio, seconds by stage."""
        return Report(**self._connected.report())

    @property
    def step_report(self) -> StepReport:
        """The report of the last step only."""
        return StepReport(**self._connected.step_report())

    def on_step(self, callback: Callback, every: int = 1) -> None:
        """Calls `callback` with the StepReport of every `every`-th step, on every rank."""
        self._callbacks.append((max(1, every), callback))

    def log_to(self, writer: Any, every: int = 10, prefix: str = "thinwire") -> None:
        """Writes scalars to a TensorBoard writer, or to anything with add_scalar(), every `every`
        steps, on every rank that calls it.

        With a path, rank 0 creates a writer there, if tensorboard is installed.
        """
        path = writer if isinstance(writer, str) else None
        if path is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError("log_to: writing to a path needs the package tensorboard; "
                                  "install it, or give a writer") from error
            writer = None

        def write(report: StepReport) -> None:
            nonlocal writer
            if path is not None and writer is None:
                if self._group is None or self._group.rank() != 0:
                    return
                writer = SummaryWriter(path)
            for key in ("ratio", "payload_bytes", "sent_bytes", "encode_seconds", "wait_seconds",
                        "decode_seconds", "skipped"):
                writer.add_scalar(f"{prefix}/{key}", float(getattr(report, key)), report.step)
            if path is not None:
                writer.flush()  # nobody else can if the training dies

        self.on_step(write, every)

    def __repr__(self) -> str:
        return f"<thinwire.{type(self).__name__} {', '.join([self._text, *self._facts()])}>"

    def _facts(self) -> list[str]:
        """For repr()."""
        if self._attachment is None or self._group is None:
            return ["not connected yet"]
        report = self._attachment.report()
        steps = f"{report['steps']} steps"
        if report["skipped"]:
            steps += f" ({report['skipped']} skipped)"
        if report["ratio"]:
            steps += f", 1/{report['ratio']:.3g} of dense"
        return [f"{self._group.size()} workers", f"{self._count_of_parameters} parameters", steps]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Reports":
        return self  # a connection: a copy of its holder (a module, for EMA) shares it

    def __getstate__(self) -> dict[str, Any]:
        if getattr(self, "_attachment", None) is not None:
            raise TypeError(f"a thinwire.{type(self).__name__} is connected with other processes "
                            "and cannot be pickled; save its state_dict() instead")
        return dict(self.__dict__)

    def _tell(self, report: StepReport) -> None:
        for every, callback in self._callbacks:
            if report.step % every == 0:
                callback(report)

    def _count(self, skipped: bool) -> None:
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if self._skipped_in_a_row == _SKIPPED_IN_A_ROW:
            logger.warning("%d steps in a row were skipped: gradients are not finite. With a "
                           "GradScaler, give it to attach(scaler=...)", _SKIPPED_IN_A_ROW)

    def _say(self, text: str, *values: Any) -> None:
        if self._group is None or self._group.rank() == 0:
            logger.info(text, *values)
