"""_momentum: optimizers beside a link: their momentum where the scheme holds it instead, and steps that must not take place.

While a scheme holds the momentum, the optimizer's groups still show it: schedulers change it there, and checkpoints have it. The
step itself runs on a stand-in, a copy of the optimizer whose groups have none. So nothing has to be put back when a step raises.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

import torch
import torch.distributed as dist

from . import _native
from ._options import Held, held_by

# In the groups of an optimizer's checkpoint: a scheme held what momentum had gathered. From a load until the first step also in its own.
TRACE = "thinwire_momentum"

AnyOptimizers = Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]]
Velocity = dict[str, torch.Tensor]  # momentum_buffers by parameter, flat, with the sign of the gradient


def unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """The one that steps: Accelerate's and Lightning's optimizers hold it inside."""
    found = optimizer
    while isinstance(getattr(found, "optimizer", None), torch.optim.Optimizer):
        found = found.optimizer
    if not isinstance(found, torch.optim.Optimizer):
        raise TypeError(f"expected a torch.optim.Optimizer, or a list of them, got {type(optimizer).__name__}; if it wraps one, give that one")
    return found


def as_list(optimizers: AnyOptimizers) -> list[torch.optim.Optimizer]:
    several = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
    found = [unwrapped(optimizer) for optimizer in several]
    if not found:
        raise ValueError("expected an optimizer, or a list of them, got an empty list; None is for a training whose optimizer is elsewhere")
    return found


def check_cover(optimizers: Sequence[torch.optim.Optimizer], names: Mapping[torch.Tensor, str]) -> None:
    """Together they step every parameter that is averaged, each once: a void step must be one for all, and momentum is held once."""
    times = dict.fromkeys(names, 0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in times:
                    times[parameter] += 1
    for count, problem in ((0, "none of the optimizers given has it; give all of them, as a list, or freeze it (requires_grad_(False)) before DDP"),
                           (2, "two of the optimizers given have it; let one step it")):
        wrong = [names[parameter] for parameter, number in times.items() if min(number, 2) == count]
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise ValueError(f"parameter {', '.join(repr(name) for name in wrong[:3])}{more}: {problem}")


def _is_sharded(optimizer: torch.optim.Optimizer) -> bool:
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


class Optimizer:
    """Watches the steps of one optimizer, by its own hooks."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], is_void: Callable[[], bool],
                 after: Callable[[], None]) -> None:
        self.shown = optimizer  # has the groups that schedulers write
        self.optimizer: torch.optim.Optimizer = optimizer
        if _is_sharded(optimizer):
            if getattr(optimizer, "_overlap_with_ddp", False):
                raise ValueError("ZeroRedundancyOptimizer(overlap_with_ddp=True) steps inside a hook of its own; make it without")
            self.optimizer = getattr(optimizer, "optim")  # steps this rank's shard
        self.memory: dict[str, torch.Tensor] = {}  # of weight decay, by parameter
        self.on_velocity: Callable[[Velocity], None] = lambda velocity: None
        self._sums: dict[str, torch.Tensor] = {}  # gradients with decay, for the step
        self._names = names
        self._is_void, self._after = is_void, after
        self._held: Optional[Held] = None
        self._momenta: list[float] = []  # of the groups when gradients travelled
        self._given: Velocity = {}  # until the next step: a state that is loaded meanwhile may drop it
        self._orphan = False  # its state was saved while a scheme held the momentum
        self._reunited = False  # ... and what the scheme held has come since the last step
        self._stepped = False
        self._held_back: list[tuple[torch.Tensor, Optional[torch.Tensor]]] = []
        self._check_free()
        self._recall()
        self._hooks = [self.optimizer.register_step_pre_hook(self._before_step), self.optimizer.register_step_post_hook(self._after_step),
                       optimizer.register_state_dict_post_hook(self._after_save), optimizer.register_load_state_dict_post_hook(self._after_load)]

    @property
    def taken(self) -> bool:
        return self._held is not None

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    # -- momentum between the optimizer and the scheme

    def gathered(self) -> Velocity:
        """What momentum has gathered so far. Collective for a ZeroRedundancyOptimizer, of which each rank has a part."""
        found: Velocity = {}
        for group, parameter, name in self._parameters():
            buffer = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if _is_sharded(self.shown) and group["momentum"] != 0:
                buffer = torch.zeros_like(parameter) if buffer is None else buffer.clone()
                dist.all_reduce(buffer, group=getattr(self.shown, "process_group"))
            if buffer is not None:
                found[name] = _sign(group) * buffer.detach().reshape(-1)
        return found

    def take(self, text: str) -> None:
        """The scheme holds the momentum from now on, with what gathered() has returned."""
        before, self._held = self._held, held_by(text)
        if not self._names:  # the scheme has other names for the parameters
            self._held = self._held._replace(follows=False)
        if before is not None:
            for memory in self.memory.values():
                memory *= self._held.factor / before.factor
        if not self._held.decays:
            self.memory = {}
        self._momenta = [float(group["momentum"]) for group in self.shown.param_groups]
        for _, parameter, _ in self._parameters():
            self.optimizer.state.get(parameter, {}).pop("momentum_buffer", None)

    def give(self, velocity: Velocity) -> None:
        """The optimizer has its momentum again, and goes on from `velocity` and from what decay has gathered."""
        factor = 1.0 if self._held is None else self._held.factor
        self._given = dict(velocity)
        for name, memory in self.memory.items():
            self._given[name] = self._given.get(name, 0) + memory.reshape(-1) / factor
        self._held = None
        self.memory, self._sums = {}, {}
        self._install()

    def load_memory(self, memory: Mapping[str, torch.Tensor]) -> None:
        factor = 1.0 if self._held is None else self._held.factor
        self.memory = {name: torch.empty_like(parameter, requires_grad=False).copy_(factor * memory[name].reshape(parameter.shape))
                       for _, parameter, name in self._parameters() if name in memory}

    def reunited(self) -> None:
        """The link's state was loaded, so what the scheme held is here."""
        self._reunited = True

    def momenta(self) -> dict[str, float]:
        return {name: float(group.get("momentum", 0)) for group, _, name in self._parameters()}

    def factors(self) -> dict[str, float]:
        """Asked when gradients are about to travel: what the scheme's u must be multiplied with to have the groups' momentum."""
        held = self._held
        if held is None or not held.follows or not any(self._momenta):
            return {}
        self._momenta = [float(group["momentum"]) for group in self.shown.param_groups]
        return {name: group["momentum"] / held.momentum for group, _, name in self._parameters() if group["momentum"] != held.momentum}

    def _install(self) -> None:
        for group, parameter, name in self._parameters():
            if name not in self._given or group["momentum"] == 0 or not self._owns(parameter):
                continue
            buffer = torch.empty_like(parameter, requires_grad=False)
            buffer.copy_(_sign(group) * self._given[name].view(parameter.shape))
            self.optimizer.state[parameter].setdefault("momentum_buffer", buffer)

    def _owns(self, parameter: torch.Tensor) -> bool:
        return self.shown is self.optimizer or any(parameter is own for group in self.optimizer.param_groups for own in group["params"])

    def _recall(self) -> None:
        """A state that was saved while a scheme held the momentum. Older ones hid the momentum itself, too."""
        for group in self.shown.param_groups:
            if isinstance(group.get(TRACE), (list, tuple)) and group["momentum"] == 0:
                group["momentum"], group["nesterov"] = group[TRACE]
        self._orphan = not self._stepped and any(TRACE in group for group in self.shown.param_groups)

    def _after_save(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if self._held is not None:
            for group in state["param_groups"]:
                group[TRACE] = True

    def _after_load(self, optimizer: torch.optim.Optimizer) -> None:
        self._recall()
        if self._held is None:
            self._install()
            return
        velocity = self.gathered()
        for _, parameter, _ in self._parameters():
            self.optimizer.state.get(parameter, {}).pop("momentum_buffer", None)
        if velocity:  # of a run whose optimizer held it; decay's is in it
            self.memory = {}
            self.on_velocity(velocity)

    def _check_free(self) -> None:
        for hook in self.optimizer._optimizer_step_pre_hooks.values():
            other = getattr(hook, "__self__", None)
            if not isinstance(other, Optimizer):
                continue
            both = [name for _, parameter, name in self._parameters() if other._is_mine(parameter)]
            if both:
                raise RuntimeError(f"the optimizer steps '{both[0]}' for another link already; detach() that one first, or make a new optimizer")

    # -- the step

    def _is_mine(self, parameter: torch.Tensor) -> bool:
        return not self._names or parameter in self._names

    def _parameters(self) -> Iterator[tuple[dict[str, Any], torch.Tensor, str]]:
        """Those of the link, with their groups and names."""
        place = 0
        for group in self.shown.param_groups:
            for parameter in group["params"]:
                if self._is_mine(parameter):
                    yield group, parameter, self._names.get(parameter, f"optimizer{place}")
                place += 1

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """With a closure (Lightning) backward runs inside the step, and what is to be done comes after it."""
        stepper = args[0] if self._held is None else _stand_in(args[0])
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._prepare(stepper)
            return (stepper, *args[1:]), kwargs

        def prepared() -> Any:
            loss = closure()
            self._prepare(stepper)
            return loss

        return (stepper, prepared, *args[2:]), {key: value for key, value in kwargs.items() if key != "closure"}

    def _prepare(self, stepper: torch.optim.Optimizer) -> None:
        if self._orphan and not self._reunited:
            raise RuntimeError("the optimizer's state was saved while a scheme held what its momentum had gathered, which is in the link's "
                               "state: link.load_state_dict() it too. To begin without, delete '" + TRACE + "' from the optimizer's groups "
                               "before attach()")
        void = self._is_void()  # without gradients an optimizer leaves weights and its own state alone
        self._held_back = [(parameter, parameter.grad) for _, parameter, _ in self._parameters()] if void else []
        for parameter, _ in self._held_back:
            parameter.grad = None
        if self._held is not None:
            self._check_momenta(self._held)
            with_decay = self._with_decay(self._held)
            stepper.param_groups = [part for group in stepper.param_groups for part in self._parts(group, self._held, with_decay)]

    def _check_momenta(self, held: Held) -> None:
        for i, (group, before) in enumerate(zip(self.shown.param_groups, self._momenta)):
            if group["momentum"] == before:
                continue
            why = ("It has changed since the gradients travelled: call scheduler.step() after optimizer.step()" if held.follows and any(self._momenta)
                   else f"Scheme '{held.text}' cannot follow it: set_scheme() before the change, or leave momentum alone (cycle_momentum=False)")
            raise RuntimeError(f"group {i} of the optimizer has momentum {group['momentum']:g}, the scheme has applied {before:g}. {why}")

    def _with_decay(self, held: Held) -> dict[torch.Tensor, torch.Tensor]:
        """What the optimizer steps instead of a parameter with decay: the same memory, with decay in its gradient."""
        found: dict[torch.Tensor, torch.Tensor] = {}
        scale = getattr(self.optimizer, "grad_scale", None)  # of a GradScaler, where a fused step unscales
        factor = 1.0 if scale is None else float(scale)
        for group, parameter, name in self._parameters():
            if not held.decays or group["weight_decay"] == 0 or parameter.grad is None:
                continue
            found[parameter] = parameter.detach()
            memory = self.memory.setdefault(name, torch.zeros_like(found[parameter]))
            found[parameter].grad = self._sums.setdefault(name, torch.empty_like(found[parameter]))
            _native.add_decay(group["momentum"] if held.follows and any(self._momenta) else held.momentum, _sign(group) * group["weight_decay"],
                              held.nesterov, factor, found[parameter], memory, parameter.grad, self._sums[name])
        return found

    def _parts(self, group: dict[str, Any], held: Held, with_decay: dict[torch.Tensor, torch.Tensor]) -> Iterator[dict[str, Any]]:
        mine = [with_decay.get(parameter, parameter) for parameter in group["params"] if self._is_mine(parameter)]
        others = [parameter for parameter in group["params"] if not self._is_mine(parameter)]
        if mine:
            decay = 0.0 if held.decays else group["weight_decay"]
            yield {**group, "params": mine, "momentum": 0.0, "nesterov": False, "weight_decay": decay}
        if others:
            yield {**group, "params": others}

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter, gradient in self._held_back:
            parameter.grad = gradient
        self._held_back = []
        if args[0] is not optimizer:  # what a subclass keeps in itself
            kept = ("param_groups", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
            optimizer.__dict__.update((key, value) for key, value in args[0].__dict__.items() if key not in kept)
        self._given = {}
        self._stepped, self._orphan, self._reunited = True, False, False
        for group in self.shown.param_groups:
            group.pop(TRACE, None)
        self._after()


def _sign(group: dict[str, Any]) -> float:
    return -1.0 if group.get("maximize", False) else 1.0


def _stand_in(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The same optimizer, whose list of groups may be another one. A step inside its step (of a subclass) is no step of its own."""
    copy: torch.optim.Optimizer = object.__new__(type(optimizer))
    copy.__dict__.update(optimizer.__dict__)
    copy._optimizer_step_pre_hooks, copy._optimizer_step_post_hooks = {}, {}
    return copy


class Optimizers:
    """All that step one link's parameters, as one."""

    def __init__(self, optimizers: list[torch.optim.Optimizer], names: dict[torch.Tensor, str], *, steps: Callable[[], int],
                 is_void: Callable[[], bool], after: Callable[[], None]) -> None:
        self._steps, self._is_void, self._after = steps, is_void, after
        self._asked, self._void = -1, False  # the step that is_void() was last asked for, and its answer
        self._step, self._done = -1, 0  # the last step that an optimizer took, and the last that after() was called for
        self._now, self._last = set(range(len(optimizers))), set[int]()  # who took that step, and the one before
        self._all: list[Optimizer] = []
        try:
            if names:
                check_cover(optimizers, names)
            for i, optimizer in enumerate(optimizers):
                self._all.append(Optimizer(optimizer, names, self._is_void_now, lambda i=i: self._stepped(i)))  # type: ignore[misc]
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
        return _merged(one.factors() for one in self._all)

    def take(self, text: str) -> None:
        for one in self._all:
            one.take(text)

    def give(self, velocity: Velocity) -> None:
        for one in self._all:
            one.give(velocity)

    def close(self) -> None:
        for one in self._all:
            one.close()

    def _is_void_now(self) -> bool:
        now = self._steps()
        if now != self._asked:
            self._void = self._is_void()
            self._asked = now
        return self._void

    def _stepped(self, which: int) -> None:
        """after() comes once per step: when all have stepped that did so in the step before. (Of a GAN's two, one may step at a time.)"""
        now = self._steps()
        if now != self._step:
            self._step, self._last, self._now = now, self._now, set()
        self._now.add(which)
        if self._done != now and (which not in self._last or self._last <= self._now):
            self._done = now
            self._after()


def _merged(parts: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}
