"""_optimizers: all optimizers that step the parameters of one link, as one."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

import torch

from ._momentum import Optimizer, Velocity

AnyOptimizers = Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]]


def unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """The one that steps: Accelerate's and Lightning's optimizers hold it inside."""
    found = optimizer
    while isinstance(getattr(found, "optimizer", None), torch.optim.Optimizer):
        found = found.optimizer
    if not isinstance(found, torch.optim.Optimizer):
        raise TypeError(
            f"expected a torch.optim.Optimizer, or a list of them, got {type(optimizer).__name__}; "
            f"if it wraps one, give that one"
        )
    return found


def the_only(optimizers: AnyOptimizers) -> torch.optim.Optimizer:
    several = as_list(optimizers)
    if len(several) != 1:
        raise ValueError(
            f"attach: delay= counts the steps of one optimizer, got {len(several)}; give one that "
            f"has all parameters, or attach each optimizer with the part of the model that it trains"
        )
    return several[0]


def as_list(optimizers: AnyOptimizers) -> list[torch.optim.Optimizer]:
    several = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
    found = [unwrapped(optimizer) for optimizer in several]
    if not found:
        raise ValueError(
            "expected an optimizer, or a list of them, got an empty list; None is for a training "
            "whose optimizer is elsewhere"
        )
    return found


def check_cover(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[torch.Tensor, str]
) -> None:
    """Together they step every parameter that is averaged, each once: a void step must be one for
    all, and momentum is held once."""
    times = dict.fromkeys(names, 0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in times:
                    times[parameter] += 1
    for count, problem in (
        (
            0,
            "none of the optimizers given has it; give all of them, as a list, or freeze it "
            "(requires_grad_(False)) before DDP",
        ),
        (2, "two of the optimizers given have it; let one step it"),
    ):
        wrong = [
            names[parameter]
            for parameter, number in times.items()
            if min(number, 2) == count and parameter.requires_grad
        ]
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise ValueError(
                f"parameter {', '.join(repr(name) for name in wrong[:3])}{more}: {problem}"
            )


class Optimizers:
    """All that step one link's parameters, as one."""

    def __init__(
        self,
        optimizers: list[torch.optim.Optimizer],
        names: dict[torch.Tensor, str],
        is_void: Callable[[], bool],
        after: Callable[[], None],
    ) -> None:
        self._is_void, self._after = is_void, after
        self._exchanges = 0  # so many gradients have travelled; the next four are such numbers
        self._changed = -1  # the last before momentum went over
        self._asked, self._void = (
            -1,
            False,
        )  # the one that is_void() was last asked for, and its answer
        self._step, self._done = (
            -1,
            0,
        )  # the one that an optimizer has stepped last, and the one that after() was called for
        self._now, self._last = (
            set(range(len(optimizers))),
            set[int](),
        )  # who took that step, and the one before
        self._all: list[Optimizer] = []
        try:
            if names:
                check_cover(optimizers, names)
            for i, optimizer in enumerate(optimizers):
                stepped = functools.partial(self._stepped, i)
                self._all.append(Optimizer(optimizer, names, self._is_void_now, stepped))
        except Exception:
            self.close()
            raise

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self._all)

    @property
    def taken(self) -> bool:
        return any(one.taken for one in self._all)

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
        """Asked when gradients are about to travel, once per step."""
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

    def _is_void_now(self) -> bool:
        now = self._exchanges
        if now != self._asked:
            self._void = self._is_void()
            self._asked = now
        # Zeros have no momentum: torch's get_state_dict() makes a step of them.
        if now == self._changed and any(
            parameter.grad is not None and parameter.grad.any()
            for one in self._all
            for _, parameter, _ in one.parameters()
        ):
            raise RuntimeError(
                "the gradients at hand travelled before the momentum went over between optimizer "
                "and scheme, and would have it twice or not at all: call attach(), set_scheme() "
                "and the like after step() of all optimizers, before backward()"
            )
        return self._void

    def _stepped(self, which: int) -> None:
        """after() comes once per step: when all have stepped that did so in the step before. (Of a
        GAN's two, one may step at a time.)"""
        now = self._exchanges
        if now != self._step:
            self._step, self._last, self._now = now, self._now, set()
        self._now.add(which)
        if self._done != now and (which not in self._last or self._last <= self._now):
            self._done = now
            self._after()


def _merged(parts: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}
