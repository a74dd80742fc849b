"""_moments: an optimizer under delayed averaging: what of its state the workers share while they train, and what when they stop."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from . import _native

# What trained in our runs (docs/delay.md); int8, onebit, fp16 and powersgd diverged, the rest was not tried.
_FAITHFUL = ("dense", "bf16")
_SPARSE = ("dgc", "topk")  # with book=b

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
        known = set(parameters)
        strange = sum(parameter not in known for group in groups for parameter in group["params"] if parameter.requires_grad)
        if strange:
            raise ValueError(f"delay: the optimizer has {strange} parameters that the model has not; they would drift apart. Give attach() the "
                             "module that holds them all")

    def check_fit(self, text: str, correction: str) -> None:
        """A second moment that lacks what a scheme held back is near 0 where steps divide by it: they would explode."""
        scheme, book = _native.parse(text)[0], _native.parse(correction)[1].get("book", "a")
        if self._second is None or scheme in _FAITHFUL or (scheme in _SPARSE and book == "b"):
            return
        way = 'correction="soft:book=b", which leaves in this worker\'s moments what was not sent yet' if scheme in _SPARSE else \
            'dense or bf16, or dgc or topk with correction="soft:book=b"'
        raise ValueError(f"delay: {type(self._optimizer).__name__} divides by second moments, which travel by scheme '{text}' too and would lack "
                         f"what it holds back or rounds away; take {way}. SGD takes any scheme")

    def _state(self, parameter: torch.Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self._optimizer.state.get(parameter, {})
        return state

    def now(self) -> list[Optional[torch.Tensor]]:
        """By parameter, None where there is none yet (its gradient never came); empty for SGD."""
        return [] if self._second is None else [self._state(parameter).get(self._second) for parameter in self._parameters]

    def complete(self) -> list[torch.Tensor]:
        """The same with zeros for those that are not there yet."""
        return [torch.zeros_like(parameter) if moment is None else moment for parameter, moment in zip(self._parameters, self.now())]

    def average(self, average: Average) -> None:
        """Everything the optimizer has gathered becomes the mean over the workers."""
        for key in self._all:
            found = [self._state(parameter).get(key) for parameter in self._parameters]
            tensors = [torch.zeros(() if key == "step" else parameter.shape) if value is None else value
                       for parameter, value in zip(self._parameters, found)]
            flat = flat_of(tensors)
            average(flat)
            put_back(flat, tensors)
            if key == "momentum_buffer" and self.momentum != 0:  # one that was missing has a mean too
                for parameter, tensor in zip(self._parameters, tensors):
                    self._optimizer.state[parameter][key] = tensor
