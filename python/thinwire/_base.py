"""_base: what links and plain hook states have in common: reports, schemes, checkpoints, the optimizer beside them."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import weakref
from typing import Any, Mapping, Optional, Union

import torch
import torch.distributed as dist

from . import _native, _wires
from ._checkpoint import unpacked
from ._log import logger, prepare
from ._momentum import Velocity
from ._optimizers import AnyOptimizers, Optimizers, as_list
from ._options import options_of, takes, text_of, with_momentum
from ._reports import Callback, Reports
from ._state import DELAY, REPLICATED, SUMMED, Entries, entries_in, merge_states, shard_for, shard_of
from ._velocity import factor_of, form_of, put_in, take_out, to_gradients, to_velocities

Scheme = Union[str, Mapping[str, Any]]


def check_parameters(named: list[tuple[str, torch.Tensor]]) -> None:
    for name, parameter in named:
        if parameter.dtype == torch.float32 and parameter.device.type == "cpu":
            continue
        if parameter.device.type != "cpu":
            advice = "move the model to the CPU before it is wrapped in DDP"
        elif parameter.dtype.is_complex:
            advice = "keep real and imaginary part as one float32 parameter (torch.view_as_real)"
        else:
            advice = "keep parameters in float32 (model.float()) and compute under torch.autocast"
        raise ValueError(f"parameter '{name}': expected float32 on the CPU, got {parameter.dtype} "
                         f"on {parameter.device}; {advice}")
    if not named:
        raise ValueError("the model has no parameters that require gradients")


def check_modules(model: torch.nn.Module, averaged: set[torch.Tensor]) -> None:
    for name, module in model.named_modules():
        if not isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            continue
        if module.sparse and module.weight in averaged:
            raise ValueError(f"module '{name}' is an {type(module).__name__} with sparse=True, "
                             "whose gradients are sparse tensors; schemes compress dense ones: make "
                             "it with sparse=False (sparse schemes send only what is not zero)")


def averaged_by(reducer: Any, model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The parameters that DDP averages: without frozen ones and those that it was told to ignore.
    torch.compile changes no name."""
    averaged = set(_native.averaged_parameters(reducer))
    check_modules(model, averaged)
    return [(name.replace("_orig_mod.", ""), parameter)
            for name, parameter in model.named_parameters() if parameter in averaged]


class Base(Reports):
    """What links and plain hook states have in common: everything but how they come to their buckets."""

    _attached = True

    def __init__(self, scheme: str, *, exchange: str, fuse_mb: float, timeout: Optional[float], check_every: int,
                 scaler: Any, callback: Optional[Callback], options: dict[str, Any]) -> None:
        prepare()
        super().__init__(callback)
        self._text = _native.config(text_of(scheme, options))
        self._exchange, self._fuse_bytes = exchange, int(fuse_mb * 1e6)
        self._timeout, self._check_every = timeout, check_every
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._link: Optional[_native.Link] = None
        self._optimizer: Optional[Optimizers] = None
        self._velocity: Velocity = {}  # taken over before there is a link
        self._told_of_clipping = False
        self._names: dict[torch.Tensor, str] = {}
        self._loaded: Optional[dict[str, Any]] = None
        self._schedule: list[tuple[int, Scheme]] = []
        self._resumed: Optional[Mapping[str, Any]] = None  # what was loaded, until the next step
        self._steps_seen, self._rehearsal = 0, False
        self._checked = 0  # the step after which replicas were compared, or could have been
        if self._scaler is not None and float(options_of(self._text).get("clip", 0)) != 0:
            raise ValueError(f"scheme '{self._text}' clips gradients, which a GradScaler has multiplied by its scale; give one of the two")

    def residual_norms(self) -> dict[str, float]:
        """Per parameter: the norm of what this rank has not sent yet."""
        return {name[: -len("/v")]: float(torch.linalg.vector_norm(value)) for name, (share, value) in self._native.state().items()
                if share == SUMMED and name.endswith("/v")}

    def on_step(self, callback: Callback, every: int = 1) -> None:
        super().on_step(callback, every)
        self._listen()

    # -- scheme

    def set_scheme(self, scheme: Optional[str] = None, **options: Any) -> None:
        """Another scheme, or other options of this one, from the next step on. All ranks call it
        between the same steps.

        What was not sent yet goes over to the new scheme, or into the next gradient where that keeps nothing.
        """
        text = _native.config(
            text_of(scheme if scheme is not None else self._text_without_momentum(options), options)
        )
        text = _native.config(
            with_momentum(text, None if self._optimizer is None else self._optimizer.shown)
        )
        if self._link is not None:
            self._link.check_scheme(text, self._exchange, self._fuse_bytes)
            keeps = _native.keeps_momentum(text)
            if self._optimizer is not None and self._optimizer.taken != keeps:
                self._check_named()
        self._change(text)
        if self._link is not None:
            self._say("scheme is %s from step %d on", text, self._link.steps() + 1)

    def _text_without_momentum(self, options: Mapping[str, Any]) -> str:
        """A scheduler may have changed the optimizer's momentum since the scheme took it over: it
        is asked again."""
        name, inside = _native.parse(self._text)
        if (
            self._optimizer is not None
            and any(self._optimizer.momenta().values())
            and "momentum" not in options
        ):
            inside.pop("momentum", None)
        return text_of(name, inside)

    def _change(self, text: str) -> None:
        """Everything was checked. Momentum, and what waits to be sent, take the form that the next
        scheme has for them."""
        before, keeps = self._text, _native.keeps_momentum(text)
        optimizer, taken = self._optimizer, self._optimizer is not None and self._optimizer.taken
        if self._link is None:
            if optimizer is not None and taken and not keeps:
                optimizer.give(self._velocity)
            elif optimizer is not None and not taken and keeps:
                self._velocity = optimizer.gathered()
                optimizer.take(text)
            self._text = text
            return
        if (
            _native.keeps_momentum(before)
            and not keeps
            and (optimizer is None or not any(optimizer.momenta().values()))
        ):
            logger.warning(
                "what the momentum of '%s' has gathered is dropped: there is no optimizer with "
                "momentum to go on with it",
                before,
            )
        if taken == (optimizer is not None and keeps) and form_of(before) == form_of(text):
            self._link.set_scheme(text, self._exchange, self._fuse_bytes)
        else:
            self._convert(text, keeps)
        if optimizer is not None and keeps:
            optimizer.take(text)
        self._text = text

    def _convert(self, text: str, keeps: bool) -> None:
        assert self._link is not None
        entries: Entries = self._link.state()
        layout, optimizer = self._link.layout(), self._optimizer
        velocity = take_out(entries, self._text)
        if optimizer is not None and optimizer.taken and not keeps:
            assert self._group is not None
            mean = self._mean(velocity, entries, self._group.size())
            to_gradients(entries, optimizer.momenta())
            optimizer.give(mean)
        elif optimizer is not None and not optimizer.taken and keeps:
            put_in(entries, text, self._scaled(optimizer.gathered(), entries))
            to_velocities(entries, text, optimizer.momenta())
        elif keeps:
            put_in(entries, text, velocity)
        if text.partition(":")[0] != self._text.partition(":")[0]:
            # A scheme's own schedule (warm-up) counts from its first step.
            entries.pop("exchange/step", None)
        self._link.set_scheme(text, self._exchange, self._fuse_bytes)
        self._link.load(entries, layout)

    def schedule(self, plan: Mapping[int, Scheme]) -> None:
        """Changes by step: {500: "dgc:density=0.01", 2000: {"density": 0.001}}; after so many steps the change is made."""
        changes = sorted(plan.items(), key=lambda item: item[0])
        text = self._text
        for _, change in changes:  # a mistake is said now and not at its step
            named, options = (change, {}) if isinstance(change, str) else (text, dict(change))
            text = _native.config(text_of(named, options))
        self._schedule = changes
        self._follow_schedule()

    def _follow_schedule(self) -> None:
        """Makes the changes that are due, each once: also those of steps before a restart."""
        resumed, changed = self._resumed, False
        while self._link is not None and self._schedule:
            if self._schedule[0][0] > self._link.steps():
                break
            change = self._schedule.pop(0)[1]
            self.set_scheme(change) if isinstance(change, str) else self.set_scheme(**change)
            changed = True
        if changed and resumed is not None:
            # A state of the scheme that the schedule has come to: exact only from the original.
            self.load_state_dict(resumed)

    def _mean(self, velocity: Velocity, entries: Entries, world: int) -> Velocity:
        """Over the `world` workers that had it, without the loss scale. Collective."""
        assert self._group is not None
        scale = float(entries.get("link/scale", (0, 1.0))[1])
        mean = {name: value / (world * scale) for name, value in sorted(velocity.items())}
        for value in mean.values():
            dist.all_reduce(value, group=self._group)
        return mean

    def _scaled(self, velocity: Velocity, entries: Entries) -> Velocity:
        """With the loss scale that the other entries have."""
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        if self._scaler is not None:
            scale = float(entries.setdefault("link/scale", (REPLICATED, float(scale)))[1])
        return {name: value * scale for name, value in velocity.items()}

    def _hand_over(self, velocity: Velocity) -> None:
        """What the optimizer has gathered becomes the scheme's."""
        if self._link is None:
            self._velocity = velocity
        elif velocity:
            entries: Entries = self._link.state()
            put_in(entries, self._text, self._scaled(velocity, entries))
            self._link.load(entries, self._link.layout())

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """This rank's shard: every rank saves its own. Between steps."""
        group = self._group_now()
        if self._link is None:
            about = {"scheme": self._text, "layout": [], "steps": 0, "entries": {}, "shares": {}}
            if self._loaded is not None:
                about = shard_for(self._loaded, group.rank(), group.size())
            return shard_of(entries_in(about), scheme=about["scheme"], world=group.size(),
                            rank=group.rank(), layout=about["layout"], steps=about["steps"])
        entries: Entries = self._link.state()
        if self._optimizer is not None:
            for name, memory in self._optimizer.memory.items():
                entries[name + "/decay"] = (REPLICATED, memory.clone())
        return shard_of(entries, scheme=self._text, world=group.size(), rank=group.rank(),
                        layout=self._link.layout(), steps=self._link.steps(), order="index")

    def full_state_dict(self, dst: int = 0) -> Optional[dict[str, Any]]:
        """The shards of all ranks as one state, on rank `dst` of the group; None on the others. All ranks call it."""
        shard = self.state_dict()
        group = self._group_now()
        shards: Optional[list[Any]] = [None] * group.size() if group.rank() == dst else None
        dist.gather_object(shard, shards, dst=dist.get_global_rank(group, dst), group=group)
        return None if shards is None else merge_states(shards)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a shard of this rank, or a whole, which may be of another number of workers. Between steps."""
        if self._link is None and not dist.is_initialized():
            self._loaded = dict(state)
            return
        group = self._group_now()
        shard = shard_for(state, group.rank(), group.size())
        if DELAY in shard:
            raise ValueError("load_state_dict: this is the state of a link with delay=; attach with the same delay, or begin from the weights alone")
        if self._link is None:
            self._loaded = shard
            return
        entries = entries_in(shard)
        self._check_order(shard)
        endings = [name for name in entries if name.endswith("/decay")]
        decay = {name[: -len("/decay")]: entries.pop(name)[1] for name in endings}
        self._load_momentum(entries, decay, str(shard["scheme"]), int(unpacked(state)["world"]))
        layout = shard["layout"] if self._fits(shard["layout"]) else []
        self._link.load(entries, layout, int(shard["steps"]))
        self._checked, self._resumed = self._link.steps(), state
        self._follow_schedule()
        if shard["scheme"] != self._text:
            self._say("state of scheme %s goes on with %s", shard["scheme"], self._text)

    def _load_momentum(
        self, entries: Entries, decay: dict[str, torch.Tensor], before: str, world: int
    ) -> None:
        """Of a state that another scheme may have left: momentum goes where it is held now.
        Collective where that is the optimizer."""
        optimizer, velocity = self._optimizer, take_out(entries, before)
        if optimizer is None:
            put_in(entries, self._text, velocity)
            return
        if velocity and not optimizer.taken:
            self._check_named()
        for one in optimizer:
            one.reunited()
            if velocity:
                one.load_memory(
                    {name: value / factor_of(before, "/u") for name, value in decay.items()}
                )
        if velocity and not optimizer.taken:
            to_gradients(entries, optimizer.momenta())
            optimizer.give(self._mean(velocity, entries, world))
        elif velocity:
            put_in(entries, self._text, velocity)
        elif optimizer.taken:  # the optimizer's own has gone over, or will when its state is loaded
            put_in(entries, self._text, take_out(self._native.state(), self._text))
            to_velocities(entries, self._text, optimizer.momenta())

    def _check_named(self) -> None:
        if not self._names:
            raise ValueError(
                "momentum cannot go from the scheme to the optimizer, or back: without the model "
                "nothing says which parameter of the optimizer is which of DDP's; make the State "
                "with model="
            )

    def _check_order(self, shard: Mapping[str, Any]) -> None:
        """States once had parameters in the order of memory, without saying which."""
        if shard.get("order") == "index":
            return
        odd = [name for parameter, name in self._names.items() if not parameter.is_contiguous()]
        if odd:
            raise ValueError(
                f"load_state_dict: parameter '{odd[0]}' is not contiguous (channels_last?), and "
                "this state is of an older thinwire, which did not say in which order it saved "
                "such parameters; load it into a contiguous model, and save it anew"
            )

    def _fits(self, layout: list[list[str]]) -> bool:
        mine = set(self._names.values())
        saved = {name for bucket in layout for name in bucket}
        if mine and saved != mine:
            if saved - mine:
                logger.warning("state for parameters that are frozen or gone is not used: %s", ", ".join(sorted(saved - mine)))
            if mine - saved:
                self._say("parameters that are new start without state: %s", ", ".join(sorted(mine - saved)))
            return False
        return True

    def check_replicas(self) -> None:
        """Raises when a parameter differs between ranks, and names both. All ranks call it between the same steps."""
        self._native.check_replicas()

    # -- the inside

    def _group_now(self) -> dist.ProcessGroup:
        """The group, which a plain hook state has before its first step too."""
        group = self._group if self._group is not None else self._wished_group()
        if group is None:
            raise RuntimeError("no process group yet: call init_process_group() first")
        return group

    def _wished_group(self) -> Optional[dist.ProcessGroup]:
        return None

    def _averaged(self) -> list[torch.Tensor]:
        return list(self._names)

    def _listen(self) -> None:
        """Hears of steps from the native link, which must not keep this one alive: DDP holds it."""
        if self._link is None:
            return
        after = weakref.WeakMethod(self._after_backward)

        def tell(report: dict[str, Any]) -> None:
            method = after()
            if method is not None:
                method(report)

        self._link.on_step(tell)

    def _after_backward(self, report: dict[str, Any]) -> None:
        if not self._attached:
            return
        self._tell(report)
        if self._optimizer is None:  # whose step would have told
            self._count(bool(report["skipped"]))
            if report["skipped"] and self._scaler is None:
                self._drop_gradients()
            self._after_step()

    def _drop_gradients(self) -> None:
        """After a void step: without gradients no optimizer changes weights or its own state. DDP
        writes them at the end of backward."""
        def drop() -> None:
            for parameter in self._averaged():
                parameter.grad = None

        queue = torch.autograd.Variable._execution_engine.queue_callback
        if torch._C._current_graph_task_id() != -1:  # else: a rank that has joined early
            queue(lambda: queue(drop))  # after those that are queued now, of which one is DDP's

    @property
    def _native(self) -> "_native.Link":
        if self._link is None:
            raise RuntimeError("no step was taken yet")
        return self._link

    def _connect(self, group: dist.ProcessGroup, named: list[tuple[str, torch.Tensor]]) -> None:
        self._group = group
        self._timeout = _wires.timeout_of(group, self._timeout)
        self._names = {parameter: name for name, parameter in named}
        self._link = _native.Link(**_wires.connect(group, self._timeout), names=named, scheme=self._text, exchange=self._exchange,
                                  fuse_bytes=self._fuse_bytes, void_as_nan=self._scaler is not None)
        if self._callbacks or self._optimizer is None:
            self._listen()
        if self._optimizer is not None:
            # The native link is no part of Python's cycles.
            optimizer = weakref.ref(self._optimizer)
            self._link.on_begin(lambda: {} if (found := optimizer()) is None else found.factors())
        if self._scaler is not None:
            self._scaler.scale(torch.zeros(()))  # makes its scale, if it has none yet
            self._link.set_scale(self._scaler._scale)
        if self._loaded is not None:
            loaded, self._loaded = self._loaded, None
            self.load_state_dict(loaded)
        self._follow_schedule()

    def _bind(self, optimizers: AnyOptimizers) -> None:
        """Watches the optimizers. Their momentum goes over with _offer() and _take()."""
        self._optimizer = Optimizers(
            as_list(optimizers), self._names, self._is_void, self._after_step
        )
        try:
            self._text = _native.config(with_momentum(self._text, self._optimizer.shown))
        except Exception:
            self._unbind()
            raise

    def _unbind(self) -> None:
        if self._optimizer is not None:
            self._optimizer.close()
            self._optimizer = None

    def _offer(self) -> None:
        """The scheme, where it keeps momentum, goes on with what the optimizers have gathered,
        which they still have until _take()."""
        if self._optimizer is None or not _native.keeps_momentum(self._text):
            return
        velocity = self._optimizer.gathered()
        if velocity or len(set(self._optimizer.momenta().values())) > 1:
            self._check_named()
        self._hand_over(velocity)

    def _take(self) -> None:
        if self._optimizer is None:
            return
        if _native.keeps_momentum(self._text):
            self._optimizer.take(self._text)
        for one in self._optimizer:
            one.on_velocity = self._hand_over

    def _is_rehearsal(self) -> bool:
        """A step of zeros without a backward before it: torch's get_state_dict() makes one, for an
        optimizer to show its state."""
        steps = int(self._link.report()["steps"]) if self._link is not None else 0
        before, self._steps_seen = self._steps_seen, steps
        void = self._link is not None and self._link.skipped()  # zeros after a backward
        self._rehearsal = steps == before and not void and all(
            parameter.grad is None or not parameter.grad.any() for parameter in self._averaged())
        return self._rehearsal

    def _is_void(self) -> bool:
        # Weight decay must not gather in a rehearsal; an optimizer with momentum makes its buffers.
        if self._is_rehearsal():
            return self._optimizer is not None and self._optimizer.taken
        void = self._link is not None and self._link.skipped()
        self._count(void)
        if not void and self._optimizer is not None and self._optimizer.taken:
            self._notice_clipping()
        return void

    def _notice_clipping(self) -> None:
        """Averages are velocities where the scheme holds the momentum: what is cut off from one is
        lost, for all steps to come."""
        assert self._link is not None
        share = self._link.share_kept()
        unscaled = share * (self._scaler.get_scale() if self._scaler is not None else 1.0)
        if (
            self._told_of_clipping
            or not 0 < share < 1 - 1e-5
            or abs(unscaled - 1) < 1e-5
            or math.frexp(share)[0] == 0.5
        ):
            return
        self._told_of_clipping = True
        way = (
            "by attach(..., clip=NORM)"
            if takes(self._text, "clip")
            else "with scheme dgc and its option clip="
        )
        logger.warning(
            "gradients were multiplied by %.3g after they had travelled. If that is "
            "clip_grad_norm_: the averages of '%s' are velocities, and what is clipped off is "
            "lost; let the scheme clip gradients instead, %s",
            share,
            self._text,
            way,
        )

    def _after_step(self) -> None:
        if self._link is None or self._rehearsal:
            self._rehearsal = False
            return
        self._resumed = None
        self._follow_schedule()
        steps, before = self._link.steps(), self._checked
        self._checked = steps
        every = self._check_every
        if every and steps // every > before // every and not self._joining():
            self._link.check_replicas()

    def _joining(self) -> bool:
        return False
