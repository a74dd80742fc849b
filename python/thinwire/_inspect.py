"""_inspect: thinwire.inspect() recommends a scheme for a user's own model on a given link."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import itertools
import math
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._model import Named, check_modules, check_parameters, cut, plain_model
from ._reports import show_bytes, show_seconds, table
from ._schemes import schemes as all_schemes

_WORTHWHILE = 0.9  # of dense's time: a scheme must be faster than this to be worthwhile
_FAITHFUL = 0.999  # of the energy: a scheme that keeps this much loses nothing that matters


@dataclass(frozen=True)
class SchemeFigures:
    """What inspect() measured of one scheme, and estimated for the link.

    scheme            the scheme with its options, as text
    payload_bytes     bytes that one worker writes per step
    ratio             bytes of float32 gradients / payload_bytes
    error             part of the first gradient's norm that its message lacks, after the best
                      scaling
    loses             what is not sent is lost permanently, and it is more than rounding
    exchange_seconds  one exchange over the link, without overlap: bytes, latency, and encoding and
                      decoding on this machine
    step_seconds      exchange_seconds and one forward and backward on this machine
    gradient_seconds  time of exchanges until a whole gradient's energy has been sent; infinite
                      for a scheme that loses
    """

    scheme: str
    payload_bytes: float
    ratio: float
    error: float
    loses: bool
    exchange_seconds: float
    step_seconds: float
    gradient_seconds: float


@dataclass(frozen=True)
class Inspection:
    """What inspect() returns. print() it for a table and a sentence.

    link             the link, as it was given
    workers          how many workers share it
    parameters       elements of a gradient
    batches          how many gradients were measured
    compute_seconds  one forward and backward on this machine
    figures          by scheme, fastest gradient_seconds first
    take             the scheme to take; "dense" means: do not compress
    """

    link: str
    workers: int
    parameters: int
    batches: int
    compute_seconds: float
    figures: list[SchemeFigures]
    take: str

    def __str__(self) -> str:
        rows = [("scheme", "bytes/step", "ratio", "error", "exchange", "step", "whole gradient")]
        for one in self.figures:
            whole = "loses" if one.loses else show_seconds(one.gradient_seconds)
            rows.append((one.scheme, show_bytes(one.payload_bytes), f"{one.ratio:.3g}",
                         f"{one.error:.3f}", show_seconds(one.exchange_seconds),
                         show_seconds(one.step_seconds), whole))
        head = (f"{self.parameters} parameters, {self.batches} batches, one worker; times are "
                f"estimates for {self.workers} workers over {self.link}, without overlap")
        return "\n".join([head, *table(rows), self._verdict()])

    def _verdict(self) -> str:
        by_name = {one.scheme: one for one in self.figures}
        dense = show_seconds(by_name["dense"].exchange_seconds)
        if self.take == "dense":
            return (f"Take dense: it exchanges a step in {dense}, and no scheme that loses nothing "
                    f"carries a gradient's energy in less than {_WORTHWHILE:.0%} of that.")
        best = by_name[self.take]
        step, whole = map(show_seconds, (best.exchange_seconds, best.gradient_seconds))
        return (f"Take {best.scheme}: it exchanges a step in {step}, dense in {dense}. It carries "
                f"a whole gradient's energy in {whole}, the least of all schemes that lose "
                "nothing.")


def inspect(model: torch.nn.Module, loss: Callable[[torch.nn.Module, Any], torch.Tensor],
            batches: Iterable[Any], *, schemes: Optional[Sequence[str]] = None,
            link: str = "1gbit,1ms", workers: int = 4, steps: int = 8) -> Inspection:
    """Measures every scheme on the gradients of your own model, and says which one to take.

        print(thinwire.inspect(model, lambda model, batch: criterion(model(batch[0]), batch[1]),
                               loader, link="100mbit,5ms", workers=8))

    One process is enough: torch.distributed need not be initialized. The model is not changed: a
    copy of it computes the gradients, at its present weights. Gradients change while a model
    trains, so inspect it some hundred steps into the training.

    loss     called as loss(model, batch), returns a scalar
    batches  an iterable, as a DataLoader; the first `steps` of it are used
    schemes  texts such as "dgc:density=0.001"; default: all schemes with their default options
    link     bandwidth and latency of each worker's network: "1gbit,1ms"
    workers  how many workers the estimate is for
    """
    if workers < 2:
        raise ValueError(f"inspect: workers={workers}: expected at least 2")
    _native.average_seconds(link, workers, 0, 1, True)  # rejects a bad link before the work
    if steps < 1:
        raise ValueError(f"inspect: steps={steps}: expected at least 1")
    texts = [info.name for info in all_schemes()] if schemes is None else list(schemes)
    texts = list(dict.fromkeys(str(_native.config(text)) for text in ["dense", *texts]))
    buckets, gradients, compute = _gradients(model, loss, itertools.islice(batches, steps))
    elements = sum(tensor.numel() for tensor in gradients[0])

    def figures(text: str) -> SchemeFigures:
        found = _native.measure(text, buckets, gradients)
        sums, payload = found["reducible"], found["payload_bytes"]
        travel = _native.average_seconds(link, workers, round(payload),
                                         max(1, round(found["collectives"])), sums)
        exchange = (travel + found["encode_seconds"]
                    + found["decode_seconds"] * (1 if sums else workers))
        kept = found["kept"]
        loses = bool(found["loses"]) and kept < _FAITHFUL
        return SchemeFigures(
            text, payload, 4 * elements / payload, math.sqrt(1 - kept), loses, exchange,
            compute + exchange, math.inf if loses or kept == 0 else exchange / kept)

    measured = sorted(map(figures, texts), key=lambda one: one.gradient_seconds)
    dense = next(one for one in measured if one.scheme == "dense")
    best = measured[0]
    worthwhile = best.gradient_seconds < _WORTHWHILE * dense.gradient_seconds
    return Inspection(link, workers, elements, len(gradients), compute, measured,
                      best.scheme if worthwhile else "dense")


def _gradients(model: torch.nn.Module, loss: Callable[[torch.nn.Module, Any], torch.Tensor],
               batches: Iterable[Any]) -> tuple[list[Named], list[list[torch.Tensor]], float]:
    """The buckets, the gradients by batch and parameter (in bucket order), and the
    seconds per batch."""
    model = plain_model(model)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    copied = copy.deepcopy(inner)
    named = [(name, parameter) for name, parameter in copied.named_parameters()
             if parameter.requires_grad and parameter.numel() > 0]
    check_parameters(named)
    check_modules(copied, {parameter for _, parameter in named})
    buckets = cut(named)
    gradients: list[list[torch.Tensor]] = []
    begin = time.monotonic()
    for batch in batches:
        copied.zero_grad(set_to_none=True)
        loss(copied, batch).backward()  # type: ignore[no-untyped-call]
        gradients.append([torch.zeros_like(parameter) if parameter.grad is None
                          else parameter.grad.detach().clone()
                          for bucket in buckets for _, parameter in bucket])
        if not all(bool(tensor.isfinite().all()) for tensor in gradients[-1]):
            raise ValueError(f"inspect: the gradient of batch {len(gradients) - 1} is not finite; "
                             "look at the loss")
    if not gradients:
        raise ValueError("inspect: batches is empty; give at least one batch")
    return buckets, gradients, (time.monotonic() - begin) / len(gradients)
