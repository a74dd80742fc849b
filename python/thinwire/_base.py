"""_base: what Handle and HookState have in common: schemes, checkpoints, the optimizers."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
import weakref
from typing import Any, Mapping, Optional, Union, Unpack

import torch
import torch.distributed as dist

from . import _native
from ._connection import connect, timeout_of
from ._model import Named
from ._momentum import Velocity
from ._optimizers import AnyOptimizers, Optimizers, as_list
from ._reports import Callback, logger, prepare_logger
from ._schemes import (SchemeOptions, convert, ending_for, factor_of, form_of, options_of, put_in,
                       take_out, text_of, to_gradients, to_velocities, with_momentum)
from ._state import (BEFORE, DELAY, ORDERS, REPLICATED, SUMMED, Entries, about, entries_in,
                     has_owners, merge_states, order_of, shard_for, shard_of, unpacked,
                     without_owners)
from ._steps import Steps

Scheme = Union[str, SchemeOptions]


class Base(Steps):
    """What Handle and HookState have in common: everything but how they get DDP's buckets."""

    def __init__(self, scheme: str, *, exchange: str, fuse_mb: float, timeout: Optional[float],
                 check_every: int, scaler: Any, callback: Optional[Callback],
                 options: Mapping[str, Any]) -> None:
        prepare_logger()
        super().__init__(callback, scaler)
        self._text = _native.config(text_of(scheme, options))
        self._exchange, self._fuse_bytes = exchange, int(fuse_mb * 1e6)
        self._timeout, self._check_every = timeout, check_every
        self._velocity: Velocity = {}  # taken over before the first step
        self._loaded: Optional[dict[str, Any]] = None
        self._schedule: list[tuple[int, Scheme]] = []
        self._resumed: Optional[Mapping[str, Any]] = None  # what was loaded, until the next step
        self._checked = 0  # the step after which replicas were compared, or could have been
        if self._scaler is not None and float(options_of(self._text).get("clip", 0)) != 0:
            raise ValueError(f"scheme '{self._text}' clips gradients, which a GradScaler has "
                             "multiplied by its scale; give one of the two")

    @property
    def _attachments(self) -> list[_native.Attachment]:
        """Of the workers in this process: one, but for a simulation."""
        return [] if self._attachment is None else [self._attachment]

    def residual_norms(self) -> dict[str, float]:
        """Per parameter: the norm of what this rank has not sent yet."""
        return {name[: -len("/v")]: float(torch.linalg.vector_norm(value))
                for name, (share, value) in self._connected.state().items()
                if share == SUMMED and name.endswith("/v")}

    # -- scheme

    def set_scheme(self, scheme: Optional[str] = None, **options: Unpack[SchemeOptions]) -> None:
        """Changes the scheme, or options of it, from the next step on: set_scheme("powersgd"),
        set_scheme(density=0.01). All ranks call it between the same steps.

        The new scheme takes over what was not sent yet. If it keeps no residual, that goes into the
        next gradient.
        """
        named = scheme if scheme is not None else self._text_without_momentum(options)
        shown = None if self._optimizer is None else self._optimizer.shown
        text = _native.config(with_momentum(_native.config(text_of(named, options)), shown))
        if self._attachment is not None:
            self._attachment.check_scheme(text, self._exchange, self._fuse_bytes)
            keeps = _native.keeps_momentum(text)
            if self._optimizer is not None and self._optimizer.taken != keeps:
                self._check_named()
        self._change(text)
        if self._attachment is not None:
            self._say("scheme is %s from step %d on", text, self._attachment.steps() + 1)
            self._warn_of_host(text)

    def _warn_of_host(self, text: str) -> None:
        """Some schemes have no kernels for a GPU."""
        assert self._group is not None
        why = _native.why_on_host(text) if self._device.type == "cuda" else ""
        if why and self._group.rank() == 0:
            logger.warning("scheme %s works on the host: %s. Every gradient is copied there and "
                           "back, and training waits for it in every step", text, why)

    def _text_without_momentum(self, options: Mapping[str, Any]) -> str:
        """A scheduler may have changed the optimizer's momentum since the scheme took it over, so
        the optimizer is asked again."""
        name, inside = _native.parse(self._text)
        momenta = {} if self._optimizer is None else self._optimizer.momenta()
        if any(momenta.values()) and "momentum" not in options:
            inside.pop("momentum", None)
        return text_of(name, inside)

    def _change(self, text: str) -> None:
        """Changes the scheme once checked. Momentum and residuals take the new scheme's form."""
        before, keeps = self._text, _native.keeps_momentum(text)
        optimizer, taken = self._optimizer, self._optimizer is not None and self._optimizer.taken
        if self._attachment is None:
            if optimizer is not None and taken and not keeps:
                optimizer.give(self._velocity)
            elif optimizer is not None and not taken and keeps:
                self._velocity = optimizer.gathered()
                optimizer.take(text)
            self._text = text
            return
        has_momentum = optimizer is not None and any(optimizer.momenta().values())
        if _native.keeps_momentum(before) and not keeps and not has_momentum:
            logger.warning("what the momentum of '%s' has gathered is dropped: there is no "
                           "optimizer with momentum to go on with it", before)
        if taken == (optimizer is not None and keeps) and form_of(before) == form_of(text):
            for attachment in self._attachments:
                attachment.set_scheme(text, self._exchange, self._fuse_bytes)
        else:
            self._convert(text, keeps)
        if optimizer is not None and keeps:
            optimizer.take(text)
        self._text = text

    def _convert(self, text: str, keeps: bool) -> None:
        states: list[Entries] = [attachment.state() for attachment in self._attachments]
        layout, optimizer = self._connected.layout(), self._optimizer
        velocities = [take_out(entries, self._text) for entries in states]
        if optimizer is not None and optimizer.taken and not keeps:
            assert self._group is not None
            mean = self._mean(velocities, states[0], self._group.size())
            for entries in states:
                to_gradients(entries, optimizer.momenta())
            optimizer.give(mean)
        elif optimizer is not None and not optimizer.taken and keeps:
            gathered = optimizer.gathered()
            for entries in states:
                put_in(entries, text, self._scaled(gathered, entries))
                to_velocities(entries, text, optimizer.momenta())
        elif keeps:
            for entries, velocity in zip(states, velocities):
                put_in(entries, text, velocity)
        for attachment, entries in zip(self._attachments, states):
            if text.partition(":")[0] != self._text.partition(":")[0]:
                # A scheme's own schedule (warm-up) counts from its first step.
                entries.pop("exchange/step", None)
            attachment.set_scheme(text, self._exchange, self._fuse_bytes)
            attachment.load(entries, layout)

    def schedule(self, plan: Mapping[int, Scheme]) -> None:
        """Changes the scheme by step: {500: "dgc:density=0.01", 2000: {"density": 0.001}} makes the
        first change after 500 steps."""
        changes = sorted(plan.items(), key=lambda item: item[0])
        text = self._text
        for _, change in changes:  # mistakes are errors now, not at their step
            named, options = (change, {}) if isinstance(change, str) else (text, dict(change))
            text = _native.config(text_of(named, options))
        self._schedule = changes
        self._follow_schedule()

    def _follow_schedule(self) -> None:
        """Makes the changes that are due, each once; also those of steps before a restart."""
        resumed, changed = self._resumed, False
        while self._attachment is not None and self._schedule:
            if self._schedule[0][0] > self._attachment.steps():
                break
            change = self._schedule.pop(0)[1]
            self.set_scheme(change) if isinstance(change, str) else self.set_scheme(**change)
            changed = True
        if changed and resumed is not None:
            # A state of the scheme that the schedule has come to: exact only from the original.
            self.load_state_dict(resumed)

    def _mean(self, velocities: list[Velocity], entries: Entries, world: int) -> Velocity:
        """The mean over the `world` workers that had it, without the loss scale. `velocities`: of
        the workers in this process. Collective."""
        scale = float(entries.get("link/scale", (0, 1.0))[1])
        mean: Velocity = {}
        for name in sorted(velocities[0]):
            shares = [velocity[name] / (world * scale) for velocity in velocities]
            mean[name] = functools.reduce(torch.add, shares).to(self._device)
            self._add_others(mean[name])
        return mean

    def _add_others(self, value: torch.Tensor) -> None:
        """Adds what the workers of other processes have."""
        assert self._group is not None
        dist.all_reduce(value, group=self._group)

    def _scaled(self, velocity: Velocity, entries: Entries) -> Velocity:
        """With the loss scale that the other entries have."""
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        if self._scaler is not None:
            scale = float(entries.setdefault("link/scale", (REPLICATED, float(scale)))[1])
        return {name: value * scale for name, value in velocity.items()}

    def _hand_over(self, velocity: Velocity) -> None:
        """What the optimizer has gathered becomes the scheme's."""
        if self._attachment is None:
            self._velocity = velocity
        elif velocity:
            for attachment in self._attachments:
                entries: Entries = attachment.state()
                put_in(entries, self._text, self._scaled(velocity, entries))
                attachment.load(entries, attachment.layout())

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """This rank's state; every rank saves its own. Call it between steps."""
        group = self._group_now()
        if self._attachment is None:
            if self._loaded is None:
                return shard_of({}, scheme=self._text, layout=[], steps=0, rank=group.rank(),
                                world=group.size())
            shard = shard_for(self._loaded, group.rank(), group.size())
            return shard_of(entries_in(shard), **about(shard))
        return self._shard(self._attachment, group.rank())

    def _shard(self, attachment: _native.Attachment, rank: int) -> dict[str, Any]:
        entries: Entries = attachment.state()
        if self._optimizer is not None:
            for name, memory in self._optimizer.memory.items():
                entries[name + "/decay"] = (REPLICATED, memory.detach().cpu().clone())
        return shard_of(entries, scheme=self._text, world=self._group_now().size(), rank=rank,
                        layout=attachment.layout(), steps=attachment.steps(), order="index",
                        **{ORDERS: self._orders()})

    def _orders(self) -> dict[str, list[list[int]]]:
        found = {name: order_of(parameter) for parameter, name in self._names.items()}
        return {name: order for name, order in found.items() if order is not None}

    def full_state_dict(self, dst: int = 0) -> Optional[dict[str, Any]]:
        """The states of all ranks as one, on rank `dst` of the group; None on the others. All ranks
        call it."""
        shard = self.state_dict()
        group = self._group_now()
        shards: Optional[list[Any]] = [None] * group.size() if group.rank() == dst else None
        dist.gather_object(shard, shards, dst=dist.get_global_rank(group, dst), group=group)
        return None if shards is None else merge_states(shards)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads this rank's state, or one of full_state_dict() or merge_states(), which may be of
        another number of workers. Call it between steps."""
        if self._attachment is None and not dist.is_initialized():
            self._loaded = dict(state)
            return
        ranks, world = self._ranks(), self._group_now().size()
        shards = [shard_for(state, rank, world) for rank in ranks]
        if DELAY in shards[0]:
            raise ValueError("load_state_dict: this state was saved with delay=; attach with the "
                             "same delay, or begin from the weights alone")
        if self._attachment is None:
            self._loaded = shards[0]
            return
        self._check_order(shards[0])
        if has_owners(shards[0]) and shards[0].get(ORDERS, {}) != self._orders():
            shards = [self._without_owners(state, rank) for rank in ranks]
        states = [entries_in(shard) for shard in shards]
        decay: dict[str, torch.Tensor] = {}
        for entries in states:
            for name in [name for name in entries if name.endswith("/decay")]:
                decay[name[: -len("/decay")]] = entries.pop(name)[1]
        shard = shards[0]
        self._load_momentum(states, decay, str(shard["scheme"]),
                            int(shard.get(BEFORE, shard["world"])))
        layout = shard["layout"] if self._fits(shard["layout"]) else []
        for attachment, entries in zip(self._attachments, states):
            attachment.load(entries, layout, int(shard["steps"]))
        self._checked, self._resumed = self._attachment.steps(), state
        self._follow_schedule()
        if shard["scheme"] != self._text:
            self._say("state of scheme %s goes on with %s", shard["scheme"], self._text)

    def _ranks(self) -> list[int]:
        """Of the workers in this process."""
        return [self._group_now().rank()]

    def _load_momentum(self, states: list[Entries], decay: dict[str, torch.Tensor], before: str,
                       world: int) -> None:
        """Puts the momentum of a state, perhaps of another scheme, where it is held now. Collective
        if that is the optimizer."""
        optimizer = self._optimizer
        if optimizer is None:
            for entries in states:
                convert(entries, before, self._text)
            return
        held = any(name.endswith(("/u", "/m")) for name in states[0])
        if held and not optimizer.taken:
            self._check_named()
        for one in optimizer:
            one.reunited()
            if held:
                one.load_memory(decay, factor_of(before, "/u"))
        if held and not optimizer.taken:
            velocities = [take_out(entries, before) for entries in states]
            for entries in states:
                to_gradients(entries, optimizer.momenta())
            if ending_for(before) == "/m":  # a worker's own: those of lost workers are not there
                world = min(world, self._group_now().size())
            optimizer.give(self._mean(velocities, states[0], world))
        elif held:
            for entries in states:
                convert(entries, before, self._text)
        elif optimizer.taken:  # the optimizer's own has gone over, or will when its state is loaded
            for attachment, entries in zip(self._attachments, states):
                put_in(entries, self._text, take_out(attachment.state(), self._text))
                to_velocities(entries, self._text, optimizer.momenta())

    def _check_named(self) -> None:
        if not self._names:
            raise ValueError("momentum cannot go from the scheme to the optimizer, or back: "
                             "without the model nothing says which parameter of the optimizer is "
                             "which of DDP's; make the HookState with model=")

    def _check_order(self, shard: Mapping[str, Any]) -> None:
        """Older states had parameters in the order of memory, without saying so."""
        if shard.get("order") == "index":
            return
        odd = [name for parameter, name in self._names.items() if not parameter.is_contiguous()]
        if odd:
            raise ValueError(f"load_state_dict: parameter '{odd[0]}' is not contiguous "
                             "(channels_last?), and this state is of an older thinwire, which did "
                             "not say in which order it saved such parameters; load it into a "
                             "contiguous model, and save it anew")

    def _without_owners(self, state: Mapping[str, Any], rank: int) -> dict[str, Any]:
        """In another memory format the same stripes have other elements."""
        whole = unpacked(state)
        if "shards" not in whole:
            raise ValueError("load_state_dict: this state was saved with exchange='split' from a "
                             "model in another memory format (channels_last?), so what its stripes "
                             "hold belongs to other ranks: load the whole, "
                             "handle.full_state_dict() or thinwire.merge_states() of all states")
        return without_owners(whole["shards"])[rank]

    def _fits(self, layout: list[list[str]]) -> bool:
        mine = set(self._names.values())
        saved = {name for bucket in layout for name in bucket}
        if mine and saved != mine:
            if saved - mine:
                logger.warning("state for parameters that are frozen or gone is not used: %s",
                               ", ".join(sorted(saved - mine)))
            if mine - saved:
                self._say("parameters that are new start without state: %s",
                          ", ".join(sorted(mine - saved)))
            return False
        return True

    def check_replicas(self) -> None:
        """Raises an Error that names the parameter and the rank, if weights differ between ranks.
        All ranks call it between the same steps."""
        self._connected.check_replicas()

    # -- internals

    def _connect(self, group: dist.ProcessGroup, named: Named) -> None:
        self._group = group
        self._timeout = timeout_of(group, self._timeout)
        self._device = self._where(named)
        self._names = {parameter: name for name, parameter in named}
        self._count_of_parameters = sum(parameter.numel() for parameter in self._names)
        connection = connect(group, self._timeout, self._device)
        self._late = connection["streams"] or self._device.type != "cpu"
        self._attachment = _native.Attachment(
            **connection, names=named, scheme=self._text, exchange=self._exchange,
            fuse_bytes=self._fuse_bytes, void_as_nan=self._scaler is not None)
        if self._callbacks or self._optimizer is None or self._late:
            self._listen()
        # Without an optimizer only we can drop a skipped step's gradients, right after backward.
        self._attachment.set_prompt(self._optimizer is None and self._scaler is None)
        if self._optimizer is not None:
            # Weak, because Python's collector does not see through the native attachment.
            optimizer = weakref.ref(self._optimizer)
            self._attachment.on_begin(
                lambda: {} if (found := optimizer()) is None else found.factors())
        if self._scaler is not None:
            # Makes its scale, if it has none yet.
            self._scaler.scale(torch.zeros((), device=self._device))
            self._attachment.set_scale(self._scaler._scale)
            self._note_scales()
        if self._loaded is not None:
            loaded, self._loaded = self._loaded, None
            self.load_state_dict(loaded)
        self._follow_schedule()

    def _where(self, named: Named) -> torch.device:
        """The device of the gradients."""
        parameters = [parameter for _, parameter in named] or self._averaged()
        return parameters[0].device if parameters else torch.device("cpu")

    def _note_scales(self) -> None:
        """On CUDA: copies the loss scale to the host when a forward begins, so that no step
        must wait for the device to read it."""
        model = self._ddp_model()
        if self._device.type == "cpu" or model is None:
            return
        attachment = weakref.ref(self._connected)

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def note(*_: Any) -> None:
            found = attachment()
            if found is not None and torch.is_grad_enabled():
                found.note_scale()

        model.register_forward_pre_hook(note)

    def _bind(self, optimizers: AnyOptimizers) -> None:
        """Watches the optimizers. Their momentum goes over with _offer() and _take()."""
        self._optimizer = Optimizers(as_list(optimizers), self._names, self._is_skipped,
                                     self._after_step, self._steps_now)
        try:
            self._text = _native.config(with_momentum(self._text, self._optimizer.shown))
        except Exception:
            self._unbind()
            raise

    def _steps_now(self) -> int:
        return 0 if self._attachment is None else self._attachment.steps()

    def _unbind(self) -> None:
        if self._optimizer is not None:
            self._optimizer.close()
            self._optimizer = None

    def _offer(self) -> None:
        """Gives a scheme that keeps momentum what the optimizers have gathered. They keep it, too,
        until _take()."""
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

    def _after_step(self) -> None:
        if self._attachment is None or self._rehearsal:
            self._rehearsal = False
            return
        self._resumed = None
        self._follow_schedule()
        steps, before = self._attachment.steps(), self._checked
        self._checked = steps
        every = self._check_every
        if every and steps // every > before // every and not self._joining():
            self._attachment.check_replicas()

