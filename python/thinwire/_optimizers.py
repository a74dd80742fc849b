"""_optimizers: the optimizers beside an attachment: combines several into one, and handles their
state under delayed averaging."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import collections
import functools
import weakref
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ._momentum import Optimizer, Skipped, Velocity
from ._reports import logger

AnyOptimizers = Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]]
Average = Callable[[torch.Tensor], None]  # averages a flat float32 tensor in place over the workers


def unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer that really steps, inside Accelerate's and Lightning's wrappers."""
    found = optimizer
    while isinstance(getattr(found, "optimizer", None), torch.optim.Optimizer):
        found = found.optimizer
    if not isinstance(found, torch.optim.Optimizer):
        raise TypeError("expected a torch.optim.Optimizer, or a list of them, got "
                        f"{type(optimizer).__name__}; if it wraps one, give that one")
    return found


def the_only(optimizers: AnyOptimizers) -> torch.optim.Optimizer:
    several = as_list(optimizers)
    if len(several) != 1:
        raise ValueError(f"attach: delay= counts the steps of one optimizer, got {len(several)}; "
                         "give one that has all parameters, or attach each optimizer with the part "
                         "of the model that it trains")
    return several[0]


def as_list(optimizers: AnyOptimizers) -> list[torch.optim.Optimizer]:
    several = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
    found = [unwrapped(optimizer) for optimizer in several]
    if not found:
        raise ValueError("expected an optimizer, or a list of them, got an empty list; give None "
                         "if the optimizer is elsewhere")
    return found


def check_cover(optimizers: Sequence[torch.optim.Optimizer],
                names: Mapping[torch.Tensor, str]) -> None:
    """Checks that the optimizers together step every averaged parameter exactly once: all of
    them must skip a skipped step, and momentum is held once. They may also have parameters of
    other models."""
    stepped = [parameter for optimizer in optimizers for group in optimizer.param_groups
               for parameter in group["params"]]
    times = collections.Counter(parameter for parameter in stepped if parameter in names)
    if stepped and names and not times:
        first = next(iter(names))
        raise ValueError("attach: the optimizer steps none of this model's parameters: its first "
                         f"has shape {tuple(stepped[0].shape)}, the model's first is "
                         f"'{names[first]}' of shape {tuple(first.shape)}. It is another model's, "
                         "or was made before the model's parameters were replaced; make it from "
                         "this model's parameters()")
    trained = {parameter: name for parameter, name in names.items() if parameter.requires_grad}
    _refuse([name for parameter, name in trained.items() if times[parameter] == 0],
            "none of the optimizers given has it; give all of them, as a list, or freeze it "
            "(requires_grad_(False)) before DDP")
    _refuse([name for parameter, name in trained.items() if times[parameter] > 1],
            "two of the optimizers given have it; let one step it")


def _refuse(names: list[str], problem: str) -> None:
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        few = ", ".join(repr(name) for name in names[:3])
        raise ValueError(f"parameter {few}{more}: {problem}")


class Optimizers:
    """All optimizers that step one model's parameters, as one."""

    def __init__(self, optimizers: list[torch.optim.Optimizer], names: dict[torch.Tensor, str],
                 is_skipped: Callable[[], Skipped], after: Callable[[], None],
                 steps: Callable[[], int]) -> None:
        self._is_skipped, self._after = is_skipped, after
        # The number of gradients sent, and at which of these counts ...
        self._exchanges = 0
        self._changed = -1  # momentum moved
        self._asked = -1  # is_skipped() was last called
        self._skipped: Skipped = False  # ... and its result
        self._step = -1  # an optimizer last stepped
        self._steps = [-1] * len(optimizers)  # each of them did
        self._done = 0  # after() was last called
        # The optimizers that have taken that step, and those that took the one before.
        self._now, self._last = set(range(len(optimizers))), set[int]()
        self._all: list[Optimizer] = []
        self._stranger: Optional[str] = None  # steps our parameters, and we do not know it
        self._watch: Callable[[], Any] = lambda: None
        try:
            if names:
                check_cover(optimizers, names)
            for i, optimizer in enumerate(optimizers):
                self._all.append(Optimizer(optimizer, names,
                                           functools.partial(self._is_skipped_now, i),
                                           functools.partial(self._stepped, i), steps))
        except Exception:
            self.close()
            raise
        self._watch = watch_all(self)

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self._all)

    @property
    def taken(self) -> bool:
        return any(one.taken for one in self._all)

    @property
    def can_skip_on_device(self) -> bool:
        return all(one.can_skip_on_device() for one in self._all)

    @property
    def must_know(self) -> bool:
        return any(one.must_know() for one in self._all)

    @property
    def uses_flag(self) -> bool:
        return any(one.uses_flag() for one in self._all)

    @property
    def shown(self) -> list[torch.optim.Optimizer]:
        return [one.shown for one in self._all]

    @property
    def memory(self) -> dict[str, torch.Tensor]:
        return _merged(one.memory for one in self._all)

    def gathered(self) -> Velocity:
        return _merged(one.gathered() for one in self._all)

    def momenta(self) -> dict[str, float]:
        return _merged(one.momenta() for one in self._all)

    def factors(self) -> dict[str, float]:
        """Called once per step, when gradients are about to be sent."""
        self._check_stranger()
        self._exchanges += 1
        return _merged(one.factors() for one in self._all)

    def take(self, text: str) -> None:
        self._changed = self._changed if self.taken else self._exchanges
        for one in self._all:
            one.take(text)

    def give(self, velocity: Velocity) -> None:
        self._changed = self._exchanges if self.taken else self._changed
        for one in self._all:
            one.give(velocity)

    def close(self) -> None:
        for one in self._all:
            one.close()
        self._watch()

    def check_stepped(self, what: str) -> None:
        """Refuses `what` between backward and step(): the gradients have the scheme's momentum."""
        if self._exchanges == 0 or not (self.taken or self._changed == self._exchanges):
            return
        if any(_has_gradients(one) for one, step in zip(self._all, self._steps)
               if step != self._exchanges):
            raise RuntimeError(f"{what}: gradients that the scheme has sent wait for step(), and "
                               "include its momentum, which would count twice; call step(), or "
                               "zero_grad() to drop them, first")

    def look_at(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step of any optimizer of this process."""
        if any(optimizer is known for one in self._all for known in (one.shown, one.optimizer)):
            return
        mine = {id(parameter) for one in self._all for _, parameter, _ in one.parameters()}
        if any(id(parameter) in mine for group in optimizer.param_groups
               for parameter in group["params"]):
            self._stranger = type(optimizer).__name__

    def _check_stranger(self) -> None:
        """An optimizer that wraps one of ours is no stranger, nor is one that steps beside it."""
        stranger, self._stranger = self._stranger, None
        if stranger is None or self._exchanges == 0 or self._step == self._exchanges:
            return
        text = (f"another {stranger} than the one given to attach() steps this model: it would "
                "move on skipped steps, and replicas are not compared. To change the optimizer, "
                "detach(), wrap the module in DDP anew, and attach with the new one")
        if self.taken:
            raise RuntimeError(f"{text}. Both the scheme and that optimizer have momentum")
        logger.warning("%s", text)

    def _is_skipped_now(self, which: int) -> Skipped:
        now = self._exchanges
        if self.taken and now == self._steps[which] and _has_gradients(self._all[which]):
            raise RuntimeError(
                "step() came without a new exchange: the scheme holds the momentum, which only "
                "gradients of a backward outside of no_sync() have. Call step() once after each; "
                "if the type of parameters has changed since, wrap the model in DDP anew")
        if now != self._asked:
            self._skipped = self._is_skipped()
            self._asked = now
        # Zeros have no momentum: torch's get_state_dict() makes a step with zeros.
        if now == self._changed and any(map(_has_gradients, self._all)):
            raise RuntimeError(
                "these gradients were sent before the momentum moved between optimizer and "
                "scheme; they would include it twice, or not at all; call attach(), set_scheme() "
                "and the like after step() of all optimizers, before backward(). (Or they were "
                "not sent at all, because backward did not use every parameter of the model)")
        return self._skipped

    def _stepped(self, which: int) -> None:
        """Calls after() once per step, when all optimizers that took the previous step have
        stepped. (The two optimizers of a GAN may step one at a time.)"""
        now = self._exchanges
        self._steps[which] = now
        if now != self._step:
            self._step, self._last, self._now = now, self._now, set()
        self._now.add(which)
        if self._done != now and (which not in self._last or self._last <= self._now):
            self._done = now
            self._after()


def _has_gradients(one: Optimizer) -> bool:
    return any(parameter.grad is not None and bool(parameter.grad.any())
               for _, parameter, _ in one.parameters())


_watchers: weakref.WeakSet[Any] = weakref.WeakSet()


def _tell_watchers(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for watcher in list(_watchers):
        watcher.look_at(optimizer)


# One hook for good: one that a dying watcher removed could be removed while torch goes through its
# hooks, because Python collects garbage at any time.
register_optimizer_step_post_hook(_tell_watchers)


def watch_all(watcher: Any) -> Callable[[], Any]:
    """Shows its look_at() every step of any optimizer, as long as it lives. Returns what ends that.
    """
    _watchers.add(watcher)
    found = weakref.ref(watcher)
    return lambda: _watchers.discard(found())


def _merged(parts: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


# -- under delayed averaging


def flat_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def put_back(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view_as(tensor))


class Moments:
    """The state of an optimizer under delayed averaging.

    Adam's second moments are averaged together with the weights. Otherwise each worker would
    scale its steps by the moments of its own data.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        groups = optimizer.param_groups
        if isinstance(optimizer, torch.optim.SGD):
            self.momentum = max(float(group["momentum"]) for group in groups)
            self._second: Optional[str] = None
            self._all = ["momentum_buffer"]
        elif isinstance(optimizer, torch.optim.Adam):  # AdamW is a subclass
            if any(group["amsgrad"] for group in groups):
                raise ValueError("delay: amsgrad keeps the largest second moment that this worker "
                                 "has seen, which cannot be averaged; make Adam with amsgrad=False")
            self.momentum = max(float(group["betas"][0]) for group in groups)
            self._second = "exp_avg_sq"
            self._all = ["exp_avg", "exp_avg_sq", "step"]
        else:
            raise ValueError("delay: expected torch.optim.SGD, Adam or AdamW, got "
                             f"{type(optimizer).__name__}, whose state cannot be averaged")

    @property
    def travel(self) -> bool:
        """Whether there are second moments to average."""
        return self._second is not None

    def _state(self, parameter: torch.Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self._optimizer.state.get(parameter, {})
        return state

    def now(self) -> list[Optional[torch.Tensor]]:
        """By parameter; None where there is none yet (its gradient never came). Empty for SGD."""
        second = self._second
        return [] if second is None else [self._state(parameter).get(second)
                                          for parameter in self._parameters]

    def complete(self) -> list[torch.Tensor]:
        """The same, with zeros instead of None."""
        return [torch.zeros_like(parameter) if moment is None else moment
                for parameter, moment in zip(self._parameters, self.now())]

    def kept(self) -> int:
        """The number of parameters for which the optimizer has state."""
        return sum(self._has(parameter) for parameter in self._parameters)

    def begin(self, steps: int, fill: Callable[[list[Optional[torch.Tensor]]], None]) -> None:
        """Called before step `steps` + 1. Parameters that get their first gradient only now
        start with the second moments of the other workers, by `fill`. The optimizer would start
        at 0, which the averaging would take for a step down to 0."""
        if self._second is None or steps == 0:
            return
        late = [torch.zeros_like(parameter)
                if parameter.grad is not None and not self._has(parameter) else None
                for parameter in self._parameters]
        if all(moment is None for moment in late):
            return
        fill(late)
        for parameter, moment in zip(self._parameters, late):
            if moment is not None and moment.any():
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(float(steps), device=self._step_device(parameter)),
                    "exp_avg": torch.zeros_like(parameter), self._second: moment}

    def average(self, average: Average) -> None:
        """Replaces the optimizer's state by the mean over the workers that have it."""
        having = torch.tensor([float(self._has(parameter)) for parameter in self._parameters])
        average(having)
        for key in self._all:
            found = [self._state(parameter).get(key) for parameter in self._parameters]
            tensors = [value if value is not None else
                       torch.zeros((), device=self._step_device(parameter)) if key == "step"
                       else torch.zeros_like(parameter)
                       for parameter, value in zip(self._parameters, found)]
            flat = flat_of(tensors)  # alike: all steps are on one device, and all moments
            average(flat)
            put_back(flat, tensors)
            for parameter, tensor, share in zip(self._parameters, tensors, having.tolist()):
                if share > 0:
                    if self._second is not None:  # missing momentum is 0, a missing moment is not
                        tensor /= share
                    self._optimizer.state[parameter][key] = tensor

    def _step_device(self, parameter: torch.Tensor) -> torch.device:
        """Where Adam counts the steps of a parameter."""
        for group in self._optimizer.param_groups:
            if any(parameter is one for one in group["params"]):
                there = group.get("fused") or group.get("capturable")
                return parameter.device if there else torch.device("cpu")
        return torch.device("cpu")

    def _has(self, parameter: torch.Tensor) -> bool:
        return self._state(parameter).get(self._all[0]) is not None
