"""_advise: thinwire.advise() trains a user's own model for some steps with each of several schemes,
and says which one loses less than a tolerance."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import collections.abc
import contextlib
import copy
import itertools
import math
import random
import sys
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence, Union

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._model import plain_model
from ._reports import show_bytes, show_seconds, table
from ._schemes import with_momentum
from ._simulate import simulate
from ._simulation_report import SimulationReport

_WORTHWHILE = 0.9  # of dense's time: a scheme must be faster than this to be worthwhile
_WITH_SGD = ("bf16", "int8", "powersgd:rank=4", "onebit", "topk:density=0.01", "dgc:density=0.01",
             "dgc:density=0.001")
_WITH_OTHERS = ("bf16", "int8", "powersgd:rank=4", "topk:density=0.01")

Made = Union[torch.optim.Optimizer, tuple[torch.optim.Optimizer, Any]]
Evaluate = Callable[[torch.nn.Module], float]


@dataclass(frozen=True)
class SchemeOutcome:
    """What advise() found out about one scheme.

    scheme         the scheme with its options, as text
    scores         what evaluate() returned, by seed; nan if the run diverged
    loses          how much worse than dense, as a part of dense's score, the mean over the seeds;
                   below 0: better
    noise          half the range of that over the seeds; nan with one seed, or if the seeds changed
                   nothing
    within         loses no more than the tolerance
    payload_bytes  bytes that one worker writes per step
    ratio          bytes of float32 gradients / payload_bytes
    skipped        steps without effect, because a gradient was not finite
    step_seconds   an estimate: one worker's compute, encoding and decoding on this machine, and the
                   collectives of a step over the link, without overlap
    """

    scheme: str
    scores: tuple[float, ...]
    loses: float
    noise: float
    within: bool
    payload_bytes: float
    ratio: float
    skipped: int
    step_seconds: float

    @property
    def score(self) -> float:
        """The mean over the seeds."""
        return sum(self.scores) / len(self.scores)


@dataclass(frozen=True)
class Advice:
    """What advise() returns. print() it for a table and a sentence.

    workers, steps, seeds, link, tolerance, maximize
              as given
    outcomes  by scheme, the fewest bytes first
    take      the scheme to take; "dense" means: do not compress
    """

    workers: int
    steps: int
    seeds: int
    link: str
    tolerance: float
    maximize: bool
    outcomes: list[SchemeOutcome]
    take: str

    def __str__(self) -> str:
        rows = [("scheme", "bytes/step", "ratio", "score", "loses", "step")]
        for one in self.outcomes:
            noise = "" if math.isnan(one.noise) else f" ±{one.noise:.2%}"
            loses = ("diverged" if math.isnan(one.score)
                     else f"{one.loses:+.2%}{noise}{'' if one.within else ' !'}")
            rows.append((one.scheme, show_bytes(one.payload_bytes), f"{one.ratio:.3g}",
                         f"{one.score:.5g}", loses, show_seconds(one.step_seconds)))
        seeds = ("one seed" if self.seeds == 1 else f"{self.seeds} seeds, which changed nothing"
                 if self._alike() else f"{self.seeds} seeds (± half the range)")
        head = (f"{self.steps} steps, {self.workers} virtual workers, {seeds}; "
                f"{'higher' if self.maximize else 'lower'} scores are better; !: loses more than "
                f"{self.tolerance:.3g}; steps are estimates over {self.link}, without overlap")
        return "\n".join([head, *table(rows), self._verdict()])

    def _alike(self) -> bool:
        """Whether several seeds gave the same run."""
        return self.seeds > 1 and all(math.isnan(one.noise) for one in self.outcomes
                                      if one.scheme == "dense")

    def _verdict(self) -> str:
        by_name = {one.scheme: one for one in self.outcomes}
        dense = by_name["dense"]
        if self.take == "dense":
            good = [one for one in self.outcomes if one.within and one is not dense]
            return ("Take dense: " + (f"no scheme makes a step over {self.link} in less than "
                                      f"{_WORTHWHILE:.0%} of its time." if good else
                                      "every scheme loses more than the tolerance."))
        best = by_name[self.take]
        text = (f"Take {best.scheme}: it loses {best.loses:+.2%} against dense, within "
                f"{self.tolerance:.3g}; a step takes about {show_seconds(best.step_seconds)}, with "
                f"dense {show_seconds(dense.step_seconds)}.")
        if self._alike():
            text += (f" The {self.seeds} seeds changed nothing: all runs with dense had the same "
                     "losses, which says nothing about chance. Let the seed shuffle the batches: "
                     "give a DataLoader with shuffle=True, not a list or an iterator.")
        elif self.seeds == 1:
            text += (" One seed does not tell a loss from chance: repeat with seeds=3 and more "
                     "steps before a long run.")
        elif best.loses + best.noise > self.tolerance:
            text += " With some seeds it lost more than the tolerance: take more steps, or seeds."
        return text


def advise(model: torch.nn.Module, make_optimizer: Callable[[Iterator[torch.nn.Parameter]], Made],
           loss: Callable[[torch.nn.Module, Any], torch.Tensor], batches: Iterable[Any],
           evaluate: Optional[Evaluate] = None, *, schemes: Optional[Sequence[str]] = None,
           workers: int = 8, steps: int = 300, link: str = "1gbit,1ms", tolerance: float = 0.01,
           maximize: bool = False, seeds: int = 1) -> Advice:
    """Trains copies of your own model with each scheme and with dense, by virtual workers in this
    process, and says which scheme to take.

        print(thinwire.advise(
            model, lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            lambda model, batch: criterion(model(batch[0]), batch[1]), loader, evaluate,
            workers=8, steps=500, link="100mbit,5ms"))

    Every run begins with the weights that the model has, which stay as they are, and with one seed
    all schemes see the same batches in the same order. torch.distributed need not be initialized.

    make_optimizer  called with the parameters of a copy; returns its optimizer, or a pair of that
                    and a scheduler, whose step() follows each step
    loss            called as loss(model, batch), returns a scalar
    batches         those of all workers: each is cut into `workers` parts. It is gone through again
                    and again, up to `steps`
    evaluate        called with each trained copy, returns its score; default: the mean loss of the
                    last tenth of the steps
    schemes         texts such as "dgc:density=0.01"; default: a few that suit the optimizer
    link            of each worker, for estimates: "100mbit,5ms"
    tolerance       how much of dense's score a scheme may lose
    maximize        higher scores are better: evaluate() returns an accuracy
    seeds           how often each scheme is run, with other random numbers, such as a DataLoader's
                    shuffling. Batches in a list, or of an iterator, come in one order with all
    """
    for name, value, least in (("workers", workers, 2), ("steps", steps, 1), ("seeds", seeds, 1)):
        if value < least:
            raise ValueError(f"advise: {name}={value}: expected at least {least}")
    if maximize and evaluate is None:
        raise ValueError("advise: maximize=True needs evaluate=; without it the score is the loss")
    _native.average_seconds(link, workers, 0, 1, True)  # rejects a bad link before the work
    model = plain_model(model)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer, _ = _pair(make_optimizer(copy.deepcopy(inner).parameters()))
    if schemes is None:
        schemes = _WITH_SGD if isinstance(optimizer, torch.optim.SGD) else _WITH_OTHERS
    texts = list(dict.fromkeys(str(_native.config(text)) for text in ["dense", *schemes]))
    for text in texts:
        with_momentum(text, [optimizer])  # refuses it now, and not after the runs before it
    if isinstance(batches, collections.abc.Iterator):  # it can be gone through once only
        batches = list(itertools.islice(batches, steps))
    runs: dict[str, list[_Run]] = {text: [] for text in texts}
    generators = _generators_of(batches)
    with _randomness_kept(generators):
        for text, seed in itertools.product(texts, range(seeds)):
            _seed(seed, generators)
            runs[text].append(_run(text, copy.deepcopy(inner), make_optimizer, loss, batches,
                                   evaluate, workers, steps, link))
    dense = [run.score for run in runs["dense"]]
    if not all(map(math.isfinite, dense)):
        raise ValueError("advise: the run with dense has diverged: its score is not finite; look "
                         "at the learning rate and at the loss")
    # Compute is the same for all schemes; what differs is the machine.
    compute = _mean([run.compute for several in runs.values() for run in several])
    differ = any(run.losses != runs["dense"][0].losses for run in runs["dense"])
    outcomes = [_judged(text, several, dense, tolerance, maximize, compute, differ)
                for text, several in runs.items()]
    fits = [one for one in outcomes
            if one.within and one.step_seconds < _WORTHWHILE * outcomes[0].step_seconds]
    take = min(fits, key=lambda one: one.step_seconds).scheme if fits else "dense"
    return Advice(workers, steps, seeds, link, tolerance, maximize,
                  sorted(outcomes, key=lambda one: one.payload_bytes), take)


class _Run(NamedTuple):
    score: float
    losses: list[float]  # by step
    report: SimulationReport
    compute: float
    others: float  # the rest of an estimated step


def _run(text: str, model: torch.nn.Module, make_optimizer: Callable[..., Made],
         loss: Callable[[torch.nn.Module, Any], torch.Tensor], batches: Iterable[Any],
         evaluate: Optional[Evaluate], workers: int, steps: int, link: str) -> _Run:
    optimizer, scheduler = _pair(make_optimizer(model.parameters()))
    sim = simulate(model, optimizer, workers, text, find_unused_parameters=True)
    losses: list[float] = []
    for batch in itertools.islice(_again(batches), steps):
        optimizer.zero_grad()
        total = 0.0
        for _, part in sim.shares(batch):
            value = loss(model, part)
            value.backward()  # type: ignore[no-untyped-call]
            total += float(value.detach())
        losses.append(total / workers)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    report = sim.report()
    others = report.step_seconds(link) - report.compute_seconds
    sim.detach()
    score = (_mean(losses[-max(1, steps // 10):]) if evaluate is None
             else float(evaluate(model)))
    return _Run(score if math.isfinite(score) else math.nan, losses, report,
                report.compute_seconds, others)


def _judged(text: str, runs: list[_Run], dense: list[float], tolerance: float, maximize: bool,
            compute: float, differ: bool) -> SchemeOutcome:
    """`differ`: whether the seeds made a difference."""
    lost = [_loss_of(run.score, of_dense, maximize) for run, of_dense in zip(runs, dense)]
    loses, noise = _mean(lost), (max(lost) - min(lost)) / 2 if differ else math.nan
    reports = [run.report for run in runs]
    return SchemeOutcome(
        text, tuple(run.score for run in runs), loses, noise, loses <= tolerance,
        _mean([report.payload_bytes / report.steps for report in reports]),
        _mean([report.ratio for report in reports]), sum(report.skipped for report in reports),
        compute + _mean([run.others for run in runs]))


def _loss_of(score: float, dense: float, maximize: bool) -> float:
    worse = dense - score if maximize else score - dense
    return worse / abs(dense) if dense else math.copysign(math.inf, worse) if worse else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _pair(made: Made) -> tuple[torch.optim.Optimizer, Any]:
    return made if isinstance(made, tuple) else (made, None)


def _again(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("advise: batches is empty; give at least one batch")


def _generators_of(batches: Any) -> list[torch.Generator]:
    """A DataLoader and its samplers may shuffle by generators of their own."""
    batch_sampler = getattr(batches, "batch_sampler", None)
    places = (batches, getattr(batches, "sampler", None), batch_sampler,
              getattr(batch_sampler, "sampler", None))
    found = [getattr(place, "generator", None) for place in places]
    return [one for one in dict.fromkeys(found) if isinstance(one, torch.Generator)]


def _seed(seed: int, generators: list[torch.Generator]) -> None:
    for generator in generators:
        generator.manual_seed(seed)
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


@contextlib.contextmanager
def _randomness_kept(generators: list[torch.Generator]) -> Iterator[None]:
    """The random states of torch, Python and NumPy, and the generators, are then as before."""
    numpy = sys.modules.get("numpy")
    states = [generator.get_state() for generator in generators]
    of_python, of_numpy = random.getstate(), numpy and numpy.random.get_state()
    try:
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        gpus = range(torch.cuda.device_count()) if in_use else []
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        for generator, state in zip(generators, states):
            generator.set_state(state)
        random.setstate(of_python)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
