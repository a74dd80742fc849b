"""_momentum: one optimizer beside an attachment: moves its momentum to the scheme and back, and
skips steps.

While a scheme holds the momentum, the optimizer's groups still show it: schedulers change it
there, and checkpoints contain it. The step itself runs on a stand-in, a copy of the optimizer
whose groups have no momentum. So there is nothing to restore when a step raises.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import operator
from typing import Any, Callable, Iterator, Mapping, Optional, Union

import torch
import torch.distributed as dist

from . import _native
from ._schemes import Held, held_by, takes

# Marks the groups of an optimizer's checkpoint: a scheme held the momentum. The value is the number
# of steps then. From a load until the next step, the optimizer's own groups have the mark too.
TRACE = "thinwire_momentum"

# momentum_buffers by parameter, flat, with the sign of the gradient.
Velocity = dict[str, torch.Tensor]

# Whether a step is skipped. A tensor on the device (1 or 0) where the host does not know yet.
Skipped = Union[bool, torch.Tensor]


def is_sharded(optimizer: torch.optim.Optimizer) -> bool:
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


class Optimizer:
    """Watches the steps of one optimizer through its own hooks."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: dict[torch.Tensor, str],
        is_skipped: Callable[[], Skipped],
        after: Callable[[], None],
        steps: Callable[[], int] = lambda: 0,
    ) -> None:
        self.shown = optimizer  # its groups are those that schedulers write
        self.optimizer: torch.optim.Optimizer = optimizer
        if is_sharded(optimizer):
            if getattr(optimizer, "_overlap_with_ddp", False):
                raise ValueError(
                    "ZeroRedundancyOptimizer(overlap_with_ddp=True) steps inside a hook of its "
                    "own; construct it without that option"
                )
            self.optimizer = getattr(optimizer, "optim")  # steps this rank's shard
        self.memory: dict[str, torch.Tensor] = {}  # momentum of weight decay, by parameter
        self.on_velocity: Callable[[Velocity], None] = lambda velocity: None
        self._sums: dict[str, torch.Tensor] = {}  # gradients with decay, for the step
        # Decay that the current step has added: weights, memory, momentum, decay.
        self._begun: list[tuple[torch.Tensor, torch.Tensor, float, float]] = []
        self._names = names
        # By group: its parameters when we last looked, and of these the attached ones with their
        # names, and the others.
        self._looked: list[list[torch.Tensor]] = []
        self._split: list[tuple[list[tuple[torch.Tensor, str]], list[torch.Tensor]]] = []
        self._is_skipped, self._after, self._steps = is_skipped, after, steps
        self._held: Optional[Held] = None
        self._momenta: list[float] = []  # of the groups when gradients were sent
        self._given: Velocity = {}  # until the next step; a load in between drops it
        self._orphan = False  # its state was saved while a scheme held the momentum
        self._reunited = False  # ... and that momentum has been loaded since the last step
        self._stepped = False
        self._held_back: list[tuple[torch.Tensor, Optional[torch.Tensor]]] = []
        self._void: Optional[torch.Tensor] = None  # 1: the step is skipped, the host does not know
        self._check_free()
        self._recall()
        self._hooks = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
            optimizer.register_state_dict_post_hook(self._after_save),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]

    @property
    def taken(self) -> bool:
        return self._held is not None

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    # -- momentum between the optimizer and the scheme

    def gathered(self) -> Velocity:
        """The momentum accumulated so far. A collective for a ZeroRedundancyOptimizer, of which
        each rank has a part."""
        found: Velocity = {}
        buffers = [
            self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            for _, parameter, _ in self.parameters()
        ]
        if is_sharded(self.shown):
            self._complete(buffers)
        for (group, _, name), buffer in zip(self.parameters(), buffers):
            if buffer is not None:
                found[name] = _sign(group) * buffer.detach().reshape(-1).cpu().float()
        return found

    def _complete(self, buffers: list[Optional[torch.Tensor]]) -> None:
        """Adds the parts of the other ranks."""
        group = getattr(self.shown, "process_group")
        device = next(parameter.device for _, parameter, _ in self.parameters())
        there = torch.tensor([float(buffer is not None) for buffer in buffers], device=device)
        dist.all_reduce(there, group=group)
        for i, (_, parameter, _) in enumerate(self.parameters()):
            if there[i] > 0:
                own = buffers[i]
                total = torch.zeros_like(parameter.detach()) if own is None else own.clone()
                dist.all_reduce(total, group=group)
                buffers[i] = total

    def take(self, text: str) -> None:
        """The scheme holds the momentum from now on, starting from what gathered() returned."""
        before, self._held = self._held, held_by(text)
        self._momenta = [float(group["momentum"]) for group in self.shown.param_groups]
        # Without names, the scheme's parameter names differ. Without any momentum, the scheme uses
        # its own.
        if not self._names or not any(self._momenta):
            self._held = self._held._replace(follows=False)
        if before is not None:
            for memory in self.memory.values():
                memory *= self._held.factor / before.factor
        if not self._held.decays:
            self.memory = {}
        for _, parameter, _ in self.parameters():
            self.optimizer.state.get(parameter, {}).pop("momentum_buffer", None)

    def give(self, velocity: Velocity) -> None:
        """The optimizer gets its momentum back. It continues from `velocity` and from the
        accumulated decay."""
        factor = 1.0 if self._held is None else self._held.factor
        self._given = dict(velocity)
        for name, memory in self.memory.items():
            given = self._given.get(name)
            decay = memory.reshape(-1) / factor
            self._given[name] = decay if given is None else given.to(decay.device) + decay
        self._held = None
        self.memory, self._sums = {}, {}
        for _, parameter, _ in self.parameters():
            self.optimizer.state.get(parameter, {}).pop("momentum_buffer", None)
        self._install()

    def load_memory(self, memory: Mapping[str, torch.Tensor], before: float) -> None:
        """`before`: the factor of the scheme that has saved it. The same one keeps the bits."""
        factor = (1.0 if self._held is None else self._held.factor) / before
        self.memory = {
            name: _zeros(parameter).copy_(
                factor * memory[name].reshape(parameter.shape)
            )
            for _, parameter, name in self.parameters()
            if name in memory
        }

    def reunited(self) -> None:
        """The handle's state was loaded, so the momentum that the scheme held is available."""
        self._reunited = True

    def momenta(self) -> dict[str, float]:
        return {name: float(group.get("momentum", 0)) for group, _, name in self.parameters()}

    def factors(self) -> dict[str, float]:
        """The factor that gives the scheme's u the groups' momentum."""
        held = self._held
        if held is None or not held.follows:
            return {}
        before = self._momenta
        self._momenta = [float(group["momentum"]) for group in self.shown.param_groups]
        # SGD that has momentum for the first time begins with the gradient alone.
        anew = [was == 0 != now for was, now in zip(before, self._momenta)]
        if not any(anew) and all(momentum == held.momentum for momentum in self._momenta):
            return {}
        anew += [False] * (len(self._momenta) - len(anew))
        begins = {id(group) for group, new in zip(self.shown.param_groups, anew) if new}
        found: dict[str, float] = {}
        for group, _, name in self.parameters():
            factor = 0.0 if id(group) in begins else group["momentum"] / held.momentum
            if factor != 1:
                found[name] = factor
            if id(group) in begins and name in self.memory:
                self.memory[name].zero_()
        return found

    def _install(self) -> None:
        for group, parameter, name in self.parameters():
            if name not in self._given or group["momentum"] == 0 or not self._owns(parameter):
                continue
            buffer = torch.empty_like(parameter, requires_grad=False)
            buffer.copy_(_sign(group) * self._given[name].view(parameter.shape))
            self.optimizer.state[parameter].setdefault("momentum_buffer", buffer)

    def _owns(self, parameter: torch.Tensor) -> bool:
        return self.shown is self.optimizer or any(
            parameter is own for group in self.optimizer.param_groups for own in group["params"]
        )

    def _recall(self) -> None:
        """A state that was saved while a scheme held the momentum. Older versions also hid the
        momentum factor itself."""
        for group in self.shown.param_groups:
            if isinstance(group.get(TRACE), (list, tuple)) and group["momentum"] == 0:
                group["momentum"], group["nesterov"] = group[TRACE]
        marks = [group[TRACE] for group in self.shown.param_groups if TRACE in group]
        # A state of this very step has the momentum that the scheme holds now. States of older
        # versions do not say of which step they are.
        current = all(mark == self._steps() or type(mark) is not int for mark in marks)
        self._orphan = bool(marks) and not (self._stepped and current)

    def _after_save(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if self._held is not None:
            for group in state["param_groups"]:
                group[TRACE] = self._steps()

    def _after_load(self, optimizer: torch.optim.Optimizer) -> None:
        self._recall()
        if self._held is None:
            self._install()
            return
        velocity = self.gathered()
        for _, parameter, _ in self.parameters():
            self.optimizer.state.get(parameter, {}).pop("momentum_buffer", None)
        unmarked = not any(TRACE in group for group in self.shown.param_groups)
        if unmarked and self._stepped and not self._reunited:  # what it does not have is 0
            for _, parameter, name in self.parameters():
                velocity.setdefault(name, torch.zeros(parameter.numel()))
        if velocity:  # from a run whose optimizer held it; it includes decay
            self.memory = {}
            self.on_velocity(velocity)

    def _check_free(self) -> None:
        for hook in self.optimizer._optimizer_step_pre_hooks.values():
            other = getattr(hook, "__self__", None)
            if not isinstance(other, Optimizer):
                continue
            both = [name for _, parameter, name in self.parameters() if other._is_mine(parameter)]
            if both:
                raise RuntimeError(
                    f"attach: the optimizer steps '{both[0]}' for another handle already; detach() "
                    f"that one first, or make a new optimizer"
                )

    # -- the step

    def can_skip_on_device(self) -> bool:
        """Whether a step can be skipped without the host knowing. The gradients of a skipped step
        are zeros, so SGD without momentum changes nothing. Fused optimizers leave out a step by a
        flag on the device, once they have their state."""
        moving = [group for group in self.shown.param_groups if not self._stays(group)]
        if not moving:
            return True
        return self.takes_flag(moving)

    def takes_flag(self, moving: Optional[list[dict[str, Any]]] = None) -> bool:
        """Whether these groups, by default all, can leave out a step by a flag on the device."""
        among = self.shown.param_groups if moving is None else moving
        # A flag that is there already belongs to a GradScaler which attach() does not know.
        return (
            self._is_fused()
            and not hasattr(self.optimizer, "found_inf")
            and all(
                any(value is not None for value in self.optimizer.state[parameter].values())
                for group, parameter, _ in self.parameters()
                if parameter.grad is not None
                and group.get("momentum") != 0  # SGD without momentum has no state
                and any(group is one for one in among)
            )
        )

    def _stays(self, group: dict[str, Any]) -> bool:
        """Whether zeros as gradients leave the group's parameters as they are."""
        held = self._held
        decays = group["weight_decay"] != 0 and (held is None or not held.decays)
        still = held is not None or group.get("momentum") == 0
        return type(self.optimizer) is torch.optim.SGD and still and not decays

    def _is_fused(self) -> bool:
        kinds = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
        return self._held is None and type(self.optimizer) in kinds and all(
            group["fused"] for group in self.optimizer.param_groups)

    def must_know(self) -> bool:
        """Whether the host must know before each step whether it is skipped: a step with zeros as
        gradients would still move weights, and no flag on the device leaves it out."""
        return not self._is_fused() and not all(map(self._stays, self.shown.param_groups))

    def uses_flag(self) -> bool:
        """Whether a step that is skipped on the device has to know it there. Without decay and
        moments, zeros as gradients are enough."""
        decays = self._held is not None and self._held.decays and any(
            group["weight_decay"] != 0 for group in self.shown.param_groups)
        return decays or self._is_fused()

    def _is_mine(self, parameter: torch.Tensor) -> bool:
        return not self._names or parameter in self._names

    def parameters(self) -> Iterator[tuple[dict[str, Any], torch.Tensor, str]]:
        """The attached parameters, with their groups and names."""
        self._look()
        for group, (mine, _) in zip(self.shown.param_groups, self._split):
            for parameter, name in mine:
                yield group, parameter, name

    def _look(self) -> None:
        """Finds out which parameters of each group are attached. A tensor as a key is slow, so this
        is done again only when a group has changed."""
        now = [group["params"] for group in self.shown.param_groups]
        if len(now) == len(self._looked) and all(
            len(old) == len(new) and all(map(operator.is_, old, new))
            for old, new in zip(self._looked, now)
        ):
            return
        self._looked, self._split = [list(parameters) for parameters in now], []
        place = 0
        for parameters in now:
            mine, others = [], []
            for parameter in parameters:
                if self._is_mine(parameter):
                    name = self._names.get(parameter, f"optimizer{place}")
                    mine.append((parameter, name))
                else:
                    others.append(parameter)
                place += 1
            self._split.append((mine, others))

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """With a closure (Lightning), backward runs inside the step, and our work
        comes after it."""
        aside = self._held is not None or _may_nest(type(optimizer))
        stepper = _stand_in(args[0]) if aside else args[0]
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._prepare(stepper)
            return (stepper, *args[1:]), kwargs

        def prepared() -> Any:
            loss = closure()
            self._prepare(stepper)
            return loss

        return (stepper, prepared, *args[2:]), {
            key: value for key, value in kwargs.items() if key != "closure"
        }

    def _prepare(self, stepper: torch.optim.Optimizer) -> None:
        if self._orphan and not self._reunited:
            raise RuntimeError(
                "the optimizer's state was saved while a scheme held its momentum, which is in the "
                "handle's state of the same step: load that with handle.load_state_dict() too. To "
                f"start without it, delete '{TRACE}' from the state's param_groups before its load"
            )
        self._drop_flag()  # of a step that raised
        self._held_back, skipped = [], self._is_skipped()
        self._void = skipped if isinstance(skipped, torch.Tensor) else None
        if skipped is True:  # without gradients, weights and optimizer state stay unchanged
            self._held_back = [(parameter, parameter.grad) for _, parameter, _ in self.parameters()]
        for parameter, _ in self._held_back:
            parameter.grad = None
        if self._void is not None and self._is_fused():
            stepper.found_inf = self._void  # type: ignore[attr-defined]
        if self._held is not None:
            self._check_momenta(self._held)
            self._look()
            with_decay = self._with_decay(self._held)
            stepper.param_groups = [
                part
                for group in stepper.param_groups
                for part in self._parts(group, self._held, with_decay)
            ]

    def _drop_flag(self) -> None:
        if self._void is not None:
            self.optimizer.__dict__.pop("found_inf", None)
            self._void = None

    def _check_momenta(self, held: Held) -> None:
        for i, (group, before) in enumerate(zip(self.shown.param_groups, self._momenta)):
            if group["momentum"] == before:
                continue
            why = (
                "It has changed since the gradients were sent: call scheduler.step() after "
                "optimizer.step()"
                if held.follows
                else f"Scheme '{held.text}' cannot follow it: "
                f"{'give mask=off, ' if takes(held.text, 'mask') and not held.nesterov else ''}"
                f"set_scheme() before the change, or leave momentum alone (cycle_momentum=False)"
            )
            raise RuntimeError(
                f"group {i} of the optimizer has momentum {group['momentum']:g}, the scheme has "
                f"applied {before:g}. {why}"
            )

    def _with_decay(self, held: Held) -> dict[torch.Tensor, torch.Tensor]:
        """What the optimizer steps instead of a parameter with decay: the same memory, with
        decay in its gradient."""
        found: dict[torch.Tensor, torch.Tensor] = {}
        self._take_decay_back(held)
        # For a GradScaler, when a fused step unscales.
        scale = getattr(self.optimizer, "grad_scale", None)
        on_device: dict[tuple[float, float], list[tuple[torch.Tensor, ...]]] = {}
        if not held.decays or not any(group["weight_decay"] for group in self.shown.param_groups):
            return found
        for group, parameter, name in self.parameters():
            if group["weight_decay"] == 0 or parameter.grad is None:
                continue
            found[parameter] = weights = parameter.detach()
            if name not in self.memory:
                self.memory[name] = _zeros(parameter)
            if name not in self._sums:
                self._sums[name] = torch.empty_like(weights)
            memory, weights.grad = self.memory[name], self._sums[name]
            momentum = group["momentum"] if held.follows else held.momentum
            decay = _sign(group) * group["weight_decay"]
            row = (weights, memory, parameter.grad, self._sums[name])
            if parameter.device.type == "cpu" and self._void is None:
                factor = 1.0 if scale is None else float(scale)
                _native.add_decay(momentum, decay, held.nesterov, factor, *row)
            else:
                on_device.setdefault((momentum, decay), []).append(row)
            self._begun.append((weights, memory, momentum, decay))
        void = self._void
        if void is None:  # a fused optimizer under a GradScaler leaves the step out by this flag
            void = getattr(self.optimizer, "found_inf", None)
        for (momentum, decay), rows in on_device.items():
            _add_decay(momentum, decay, held.nesterov, scale, void, rows)
        return found

    def _take_decay_back(self, held: Held) -> None:
        """Takes back the decay that a step had added before it raised."""
        for weights, memory, momentum, decay in self._begun:
            if momentum == 0:
                memory.zero_()
            elif held.nesterov:
                memory.div_(momentum).sub_(weights, alpha=decay)
            else:
                memory.sub_(weights, alpha=decay).div_(momentum)
        self._begun = []

    def _parts(
        self, group: dict[str, Any], held: Held, with_decay: dict[torch.Tensor, torch.Tensor]
    ) -> Iterator[dict[str, Any]]:
        mine, others = list(group["params"]), []
        if any(others for _, others in self._split):
            others = [parameter for parameter in mine if not self._is_mine(parameter)]
            mine = [parameter for parameter in mine if self._is_mine(parameter)]
        if with_decay:
            mine = [with_decay.get(parameter, parameter) for parameter in mine]
        if mine:
            decay = 0.0 if held.decays else group["weight_decay"]
            yield {
                **group,
                "params": mine,
                "momentum": 0.0,
                "nesterov": False,
                "weight_decay": decay,
            }
        if others:
            yield {**group, "params": others}

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter, gradient in self._held_back:
            parameter.grad = gradient
        self._held_back, self._begun = [], []
        self._drop_flag()
        if args[0] is not optimizer:  # keeps what a subclass changed in itself
            kept = ("param_groups", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
            optimizer.__dict__.update(
                (key, value) for key, value in args[0].__dict__.items() if key not in kept
            )
        self._given = {}
        self._stepped, self._orphan, self._reunited = True, False, False
        for group in self.shown.param_groups:
            group.pop(TRACE, None)
        self._after()


def _add_decay(
    momentum: float,
    decay: float,
    nesterov: bool,
    scale: Optional[torch.Tensor],
    void: Optional[torch.Tensor],
    rows: list[tuple[torch.Tensor, ...]],
) -> None:
    """As _native.add_decay, on a device, with the same bits: rows of weights, memory, gradient and
    sum. Where `void` is not 0, the step is left out: memory stays, and sums are the gradients."""
    weights, memory, gradients, sums = (list(column) for column in zip(*rows))
    # Memory is float32: so is the sum, whatever the type of weights and gradients.
    weights, gradients = [one.float() for one in weights], [one.float() for one in gradients]
    kept: Any = momentum
    rate: Any = decay
    if void is not None:
        taken = (void == 0).to(torch.float32).reshape(())
        kept, rate = momentum * taken + (1 - taken), decay * taken
    added = torch._foreach_mul(weights, rate)
    if nesterov:
        new = list(torch._foreach_mul(torch._foreach_add(memory, added), kept))
        shown = list(torch._foreach_add(new, added))
    else:
        new = list(torch._foreach_add(torch._foreach_mul(memory, kept), added))
        shown = new
    if void is not None:
        shown = list(torch._foreach_mul(shown, taken))
    if scale is not None:
        shown = list(torch._foreach_mul(shown, scale))
    torch._foreach_copy_(sums, torch._foreach_add(gradients, shown))
    torch._foreach_copy_(memory, new)


def _zeros(parameter: torch.Tensor) -> torch.Tensor:
    """Memory for a parameter: float32, laid out as the parameter."""
    return torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)


def _sign(group: dict[str, Any]) -> float:
    return -1.0 if group.get("maximize", False) else 1.0


def _may_nest(kind: type) -> bool:
    """Whether the step of a subclass may call that of its base, which torch would count again."""
    steps = [base for base in kind.__mro__[:-1] if "step" in vars(base)]
    return len(steps) > 2 and not kind.__module__.startswith("torch.optim")


def _stand_in(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The same optimizer, whose list of groups may be another one. A nested step (inside the
    step of a subclass) does not count as a step."""
    copy: torch.optim.Optimizer = object.__new__(type(optimizer))
    copy.__dict__.update(optimizer.__dict__)
    copy._optimizer_step_pre_hooks, copy._optimizer_step_post_hooks = {}, {}
    return copy
