"""_momentum: an optimizer beside a link: its momentum where the scheme holds it instead, and steps that must not take place."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from . import _native
from ._options import momentum_of, options_of, takes, with_momentum

# Stays in the optimizer's groups (and so in its checkpoints) while the scheme holds the momentum.
TRACE = "thinwire_momentum"


class Optimizer:
    """Watches the steps of one optimizer, by its own hooks."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], is_void: Callable[[], bool],
                 after: Callable[[], None]) -> None:
        self.optimizer = optimizer
        self.memory: dict[str, torch.Tensor] = {}  # of weight decay, by parameter
        self._names = names
        self._is_void, self._after = is_void, after
        self._taken: Optional[tuple[float, bool]] = None  # what was the optimizer's: momentum, nesterov
        self._held = (0.0, False)  # what the scheme does
        self._decays = False
        self._held_back: list[tuple[torch.Tensor, Optional[torch.Tensor]]] = []
        self._decay: list[float] = []
        self._hooks = [optimizer.register_step_pre_hook(self._before_step), optimizer.register_step_post_hook(self._after_step)]

    @property
    def taken(self) -> bool:
        return self._taken is not None

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def text_for(self, text: str) -> str:
        """The scheme with this optimizer's momentum, where it keeps one. Changes nothing yet."""
        if self._taken is None:
            self._recall()
            return with_momentum(text, self.optimizer)
        if not _native.keeps_momentum(text):
            return text
        momentum, nesterov = self._taken
        self._give(momentum, nesterov)
        try:
            return with_momentum(text, self.optimizer)
        finally:
            self._give(0.0, False)

    def take(self, text: str) -> dict[str, torch.Tensor]:
        """The scheme holds the momentum from now on. Returns what the optimizer has gathered so far, by parameter."""
        momentum, nesterov = momentum_of(self.optimizer, text)
        self._taken = (momentum, nesterov)
        options = options_of(text)
        self._held = (float(options["momentum"]), options.get("nesterov") == "on")
        self._decays = takes(text, "nesterov")
        self._give(0.0, False)
        for group in self.optimizer.param_groups:
            group[TRACE] = [momentum, nesterov]
        gathered: dict[str, torch.Tensor] = {}
        for parameter, name in self._parameters():
            buffer = self.optimizer.state.get(parameter, {}).pop("momentum_buffer", None)
            if buffer is not None:
                gathered[name] = buffer
        return gathered

    def restore(self, velocity: dict[str, torch.Tensor]) -> None:
        """The optimizer has its momentum again, and goes on from `velocity`."""
        if self._taken is None:
            return
        self._give(*self._taken)
        for group in self.optimizer.param_groups:
            group.pop(TRACE, None)
        if self._taken[0] != 0:
            for parameter, name in self._parameters():
                if name in velocity:
                    self.optimizer.state[parameter]["momentum_buffer"] = velocity[name].view_as(parameter).clone()
        self._taken = None
        self.memory.clear()

    def _recall(self) -> None:
        """A state that was saved while a scheme held the momentum, loaded before the scheme is there again."""
        for group in self.optimizer.param_groups:
            if TRACE in group and group["momentum"] == 0:
                group["momentum"], group["nesterov"] = group[TRACE]

    def _give(self, momentum: float, nesterov: bool) -> None:
        for group in self.optimizer.param_groups:
            group["momentum"], group["nesterov"] = momentum, nesterov

    def _parameters(self) -> list[tuple[torch.Tensor, str]]:
        flat = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        return [(parameter, self._names.get(parameter, f"optimizer{i}")) for i, parameter in enumerate(flat)]

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """With a closure (Lightning) backward runs inside the step, and what is to be done comes after it."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._prepare()
            return None

        def prepared() -> Any:
            loss = closure()
            self._prepare()
            return loss

        return (args[0], prepared, *args[2:]), {key: value for key, value in kwargs.items() if key != "closure"}

    def _prepare(self) -> None:
        if self._is_void():  # without gradients an optimizer leaves weights and its own state alone
            self._held_back = [(parameter, parameter.grad) for parameter, _ in self._parameters()]
            for parameter, _ in self._held_back:
                parameter.grad = None
        elif self._taken is not None:
            if any(group["momentum"] != 0 for group in self.optimizer.param_groups):
                raise RuntimeError("the optimizer has momentum again, which the scheme holds already: a scheduler that cycles "
                                   "momentum (cycle_momentum=False), or a state from before attach(), has set it")
            self._add_decay()

    def _add_decay(self) -> None:
        self._decay = [group["weight_decay"] for group in self.optimizer.param_groups]
        if not self._decays or not any(self._decay):
            self._decay = []
            return
        momentum, nesterov = self._held
        names = iter(self._parameters())
        for group in self.optimizer.param_groups:
            for parameter, name in [next(names) for _ in group["params"]]:
                if parameter.grad is not None and group["weight_decay"] != 0:
                    memory = self.memory.setdefault(name, torch.zeros_like(parameter.detach()))
                    sign = -1.0 if group["maximize"] else 1.0
                    _native.add_decay(momentum, sign * group["weight_decay"], nesterov, parameter.detach(),
                                      memory, parameter.grad)
            group["weight_decay"] = 0.0

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter, gradient in self._held_back:
            parameter.grad = gradient
        self._held_back = []
        for group, decay in zip(optimizer.param_groups, self._decay):
            group["weight_decay"] = decay
        self._decay = []
        self._after()
