"""_moments: an optimizer under delayed averaging: what of its state the workers share while they train, and what when they stop."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

Average = Callable[[torch.Tensor], None]  # of a flat tensor of float32, in place, over the workers


def flat_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def put_back(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view_as(tensor))


class Moments:
    """Adam's second moments are averaged alongside the weights: else workers with other data would each scale their steps by their own."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        groups = optimizer.param_groups
        if isinstance(optimizer, torch.optim.SGD):
            self.momentum = max(float(group["momentum"]) for group in groups)
            self._second: Optional[str] = None
            self._all = ["momentum_buffer"]
        elif isinstance(optimizer, torch.optim.Adam):  # AdamW is one
            if any(group["amsgrad"] for group in groups):
                raise ValueError("delay: amsgrad keeps the largest second moment that this worker has seen, which is no mean; make Adam with "
                                 "amsgrad=False")
            self.momentum = max(float(group["betas"][0]) for group in groups)
            self._second = "exp_avg_sq"
            self._all = ["exp_avg", "exp_avg_sq", "step"]
        else:
            raise ValueError(f"delay: expected torch.optim.SGD, Adam or AdamW, got {type(optimizer).__name__}, whose state we do not know how to "
                             "average")

    @property
    def travel(self) -> bool:
        """Whether there are second moments to average."""
        return self._second is not None

    def _state(self, parameter: torch.Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self._optimizer.state.get(parameter, {})
        return state

    def now(self) -> list[Optional[torch.Tensor]]:
        """By parameter, None where there is none yet (its gradient never came); empty for SGD."""
        return [] if self._second is None else [self._state(parameter).get(self._second) for parameter in self._parameters]

    def complete(self) -> list[torch.Tensor]:
        """The same with zeros for those that are not there yet."""
        return [torch.zeros_like(parameter) if moment is None else moment for parameter, moment in zip(self._parameters, self.now())]

    def kept(self) -> int:
        """Parameters for which the optimizer has gathered something."""
        return sum(self._has(parameter) for parameter in self._parameters)

    def begin(self, steps: int, fill: Callable[[list[Optional[torch.Tensor]]], None]) -> None:
        """After `steps` steps, before the next: parameters that get their first gradient only now
        begin with the second moments that the others have, by `fill`. The optimizer would begin at
        0, which the averaging takes for a step down to 0."""
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
                    "step": torch.tensor(float(steps)), "exp_avg": torch.zeros_like(parameter),
                    self._second: moment}

    def average(self, average: Average) -> None:
        """All that the optimizer has gathered becomes the mean over the workers that have it."""
        having = torch.tensor([float(self._has(parameter)) for parameter in self._parameters])
        average(having)
        for key in self._all:
            found = [self._state(parameter).get(key) for parameter in self._parameters]
            tensors = [value if value is not None else
                       torch.zeros(()) if key == "step" else torch.zeros_like(parameter)
                       for parameter, value in zip(self._parameters, found)]
            flat = flat_of(tensors)
            average(flat)
            put_back(flat, tensors)
            for parameter, tensor, share in zip(self._parameters, tensors, having.tolist()):
                if share > 0:
                    if self._second is not None:  # no momentum is one of 0; no moment is none
                        tensor /= share
                    self._optimizer.state[parameter][key] = tensor

    def _has(self, parameter: torch.Tensor) -> bool:
        return self._state(parameter).get(self._all[0]) is not None
