"""_delayed: the handle of a model under delayed averaging (docs/delay.md)."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
from itertools import zip_longest
from typing import Any, Iterator, Mapping, Optional, Union

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _connection, _native
from ._connection import StoreBarrier, connect, meeting_device, timeout_of
from ._model import Parameters, check_parameters, cut
from ._momentum import Optimizer, Skipped
from ._optimizers import Moments, flat_of, put_back, unwrapped, watch_all
from ._reports import Callback, DelayedReport, Reports, mark, prepare_logger, shares_parameters
from ._schemes import scheme_for_delay
from ._state import DELAY, Entries, entries_in, shard_for, shard_of, unpacked


def check_correction(correction: str) -> None:
    if correction.startswith("published"):
        raise ValueError("correction published repeats the optimizer's step for the anchor, with "
                         "its own momentum and rates, which only `thinwire train` can do; use "
                         "soft, or ledger, which has the same stability")


class _Ended:
    """Stands in for the native attachment after detach(), when its threads and connections are
    gone. It only reports."""

    def __init__(self, attachment: _native.DelayedAttachment) -> None:
        self._report, self._step_report = attachment.report(), attachment.step_report()
        self._delay = attachment.delay()

    def report(self) -> dict[str, Any]:
        return self._report

    def step_report(self) -> dict[str, Any]:
        return self._step_report

    def delay(self) -> int:
        return self._delay

    def in_flight(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise _native.Error("this handle was ended by detach(); attach again")


class DelayedHandle(Reports):
    """A model, plain or DDP, under delayed averaging: it takes in the other workers' updates
    `delay` steps late. attach(..., delay=) returns it."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheme: str, *,
                 delay: Union[int, str], local_steps: int, correction: str,
                 process_group: Optional[dist.ProcessGroup], timeout: Optional[float], scaler: Any,
                 check_every: int, callback: Optional[Callback],
                 options: Mapping[str, Any]) -> None:
        prepare_logger()
        super().__init__(callback)
        self._model = model
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        if shares_parameters(model):
            raise RuntimeError("attach: parameters of this model are attached already, by another "
                               "model that shares them; detach() that one first")
        self._parameters = Parameters(model)
        named = self._parameters.averaged
        check_parameters(named, delay=True)
        check_correction(correction)
        self._cut = cut(named)
        self._count_of_parameters = sum(parameter.numel() for _, parameter in named)
        self._text = scheme_for_delay(scheme, options)
        self._settings: dict[str, Any] = {"delay": str(delay), "local_steps": local_steps,
                                          "correction": correction}
        self._moments = Moments(optimizer,
                                [parameter for bucket in self._cut for _, parameter in bucket])
        self._parameters.check_optimizer(optimizer)
        self._device = named[0][1].device
        # On a device the host does not wait to learn what a step was.
        self._late = self._device.type != "cpu" or bool(_connection.STREAMS)
        _native.check_late(self._text, **self._settings, moments=self._moments.travel,
                           streams=self._late)
        self._group: dist.ProcessGroup = self._group_of(process_group)
        self._timeout = timeout_of(self._group, timeout)
        self._attachment = self._connect(check_every)
        self._skipped: Skipped = False
        self._optimizer = Optimizer(optimizer, {parameter: name for name, parameter in named},
                                    self._is_skipped, self._after_step)
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._by_scaler = False  # the scaler has looked at the gradients of this step
        self._attached = True
        self._strange = 0  # steps of another optimizer since the last one of ours
        self._watch = watch_all(self)
        self._by_size = sorted((parameter for _, parameter in named), key=torch.Tensor.numel)
        self._note_gradient()
        mark(model, True, delayed=True)
        self._alone(True)
        self._say("%s", self._decided(check_every))

    def _connect(self, check_every: int) -> Any:
        """Changes nothing until all ranks are known to agree."""
        connections = connect(self._group, self._timeout, self._device)
        del connections["process_group"]
        if _connection.LINK is not None:
            connections.update(link=_connection.LINK, data=None)
        self._barrier = StoreBarrier(connections["store"], self._group, self._timeout)
        settings = {"scheme": self._text, **self._settings, "check_every": check_every,
                    "momentum": self._moments.momentum}
        self._agree([*(f"{key}={value}" for key, value in settings.items()),
                     f"an optimizer with state of {self._moments.kept()} parameters",
                     *self._parameters.lines()])
        moments = self._moments.complete()
        named = self._parameters.averaged + self._parameters.frozen
        self._begin_together([*(parameter for _, parameter in named),
                              *self._parameters.buffers(), *moments])
        return _native.DelayedAttachment(
            **connections, cut=self._cut, moments=moments, scheme=self._text,
            momentum=self._moments.momentum, check_every=check_every, **self._settings)

    def _agree(self, mine: list[str]) -> None:
        for rank, text in enumerate(self._barrier.gather("attach()", "\n".join(mine))):
            for theirs, own in zip_longest(text.split("\n"), mine, fillvalue="nothing more"):
                if theirs != own:
                    self._barrier.fail("attach()", f"rank {rank} has {theirs}, this rank has "
                                                   f"{own}; all ranks must attach in the same way")

    def _decided(self, check_every: int) -> str:
        settings = self._settings
        compared = f"every {check_every} steps" if check_every else "on request only"
        beside = ", second moments averaged alongside" if self._moments.now() else ""
        return (f"{self._text}, delay {settings['delay']}, {settings['local_steps']} steps per "
                f"message, correction {settings['correction']}, {self._group.size()} workers, "
                f"{self._count_of_parameters} parameters; momentum is the optimizer's{beside}; a "
                f"silent rank is an error after {self._timeout:g} s; anchors compared {compared}")

    # -- what a training uses

    def report(self) -> DelayedReport:
        """Sums of this rank since the start of the run: steps, messages, bytes, ratio, seconds."""
        return DelayedReport(**self._attachment.report())

    @property
    def delay(self) -> int:
        """The delay D in steps. With delay="auto:MOST" it is the measured one, once
        that is known."""
        return int(self._attachment.delay())

    @property
    def in_flight(self) -> int:
        """The number of messages in flight."""
        return int(self._attachment.in_flight())

    def drain(self) -> None:
        """Waits for all messages in flight and takes them in. All workers then have bit-identical
        weights.

        All ranks call it after the same number of steps. Anything that the scheme has not sent
        yet stays for the steps that may follow.
        """
        self._parameters.check_model()
        self._drain()

    @contextlib.contextmanager
    def anchor(self, average_buffers: bool = True) -> Iterator[None]:
        """A context in which the model has the weights that all workers share, to evaluate or save
        it. Afterwards training continues from its own weights.

        Inside, BatchNorm's statistics are the mean over the workers, so all ranks must enter
        after the same step. With average_buffers=False they stay this worker's own, and a rank
        may enter alone.
        """
        self._parameters.check_model()
        buffers = self._parameters.buffers()
        own = [buffer.clone() for buffer in buffers]
        self._attachment.show_anchor()
        try:
            if average_buffers:
                self._average_buffers()
            yield
        finally:
            with torch.no_grad():
                for buffer, before in zip(buffers, own):
                    buffer.copy_(before)
            self._attachment.hide_anchor()

    def check_replicas(self) -> None:
        """Raises an Error that names the parameter if an anchor or a frozen parameter differs
        between ranks. Buffers may differ: each worker has its own. All ranks call it after the
        same step.
        """
        self._parameters.check_model()
        self._attachment.check_replicas(self._parameters.frozen)

    def detach(self) -> None:
        """Drains, and lets DDP average gradients again. Momentum and BatchNorm's statistics
        become the mean over the workers. All ranks call it."""
        if not self._attached:
            return
        self._check_stepped()
        self._drain()
        self._moments.average(self._attachment.average)
        self._average_buffers()
        self._attached = False
        mark(self._model, False, delayed=True)
        self._watch()
        self._optimizer.close()
        self._alone(False)
        self._attachment = _Ended(self._attachment)

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, including the weights. Every rank saves its own, after the same
        step. Waits for messages in flight."""
        self._attachment.leave_anchor("state_dict()")
        self._parameters.check_model()
        return shard_of(self._entries(), scheme=self._text, world=self._group.size(),
                        rank=self._group.rank(), layout=self._layout(),
                        steps=self._attachment.steps(), optimizer_state=self._moments.kept(),
                        **{DELAY: self._settings})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where state_dict() was called, with its weights and messages in flight.

        Call it before the first step, after loading the model's and the optimizer's own states.
        All ranks call it, with states of the same step. If one rank's state is rejected, no rank
        changes.
        """
        self._parameters.check_model()
        before = self._entries()
        if self._attachment.report()["steps"] > 0:
            self._attachment.load(before, self._moments.now())  # raises: it is too late
        fits = False
        try:
            refused = self._try_load(state)
            mine = "refused" if refused else f"step {self._attachment.steps()}"
            told = self._barrier.gather("load_state_dict()", mine)
            fits = len(set(told)) == 1 and refused is None
        finally:
            if not fits:
                self._attachment.load(before, self._moments.now())
        if refused is not None:
            raise refused
        if not fits:
            theirs = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(told))
            self._barrier.fail("load_state_dict()",
                               f"the ranks' states do not match ({theirs}); no rank has "
                               "loaded anything. Give each rank the state that it saved after the "
                               "same step")

    def _try_load(self, state: Mapping[str, Any]) -> Optional[Exception]:
        try:
            self._attachment.load(self._entries_for(state), self._moments.now())
        except Exception as error:
            return error
        return None

    def _entries(self) -> Entries:
        return self._attachment.state(self._moments.now())  # type: ignore[no-any-return]

    def _layout(self) -> list[list[str]]:
        return [[name for name, _ in bucket] for bucket in self._cut]

    def _entries_for(self, state: Mapping[str, Any]) -> Entries:
        """This rank's entries. Raises a ValueError that says why they do not match."""
        state = unpacked(state)
        if int(state.get("world", self._group.size())) != self._group.size():
            raise ValueError(f"load_state_dict: this is the state of {state['world']} workers, "
                             f"with messages in flight between them; this job has "
                             f"{self._group.size()}. To continue with another number, save the "
                             "model after handle.drain() and attach again")
        shard = shard_for(state, self._group.rank(), self._group.size())
        saved = {"scheme": shard["scheme"], **shard.get(DELAY, {})}
        mine = {"scheme": self._text, **self._settings}
        if saved != mine:
            kind = "" if DELAY in shard else "a training without delay=, "
            raise ValueError(f"load_state_dict: this is the state of {kind}{saved}, but this "
                             f"handle has {mine}; attach with the same, or save the model after "
                             "handle.drain() and attach again")
        if shard["layout"] != self._layout():
            theirs, ours = ({name for bucket in layout for name in bucket}
                            for layout in (shard["layout"], self._layout()))
            raise ValueError("load_state_dict: this state has other trained parameters, or "
                             f"another order; only in the state: {sorted(theirs - ours)}, only in "
                             f"the model: {sorted(ours - theirs)}. Freeze the same ones, or save "
                             "the model after handle.drain() and attach again")
        if int(shard.get("optimizer_state", 0)) > 0 and self._moments.kept() == 0:
            raise ValueError("load_state_dict: the optimizer has no state yet; load it first: "
                             "this worker's momentum is in it")
        return entries_in(shard)

    # -- internals

    @property
    def _connected(self) -> Any:
        return self._attachment

    def _drain(self) -> None:
        self._attachment.leave_anchor("drain()")
        steps = self._attachment.steps()
        counts = self._barrier.gather("drain()", str(steps), self._attachment.check_messages)
        for rank, count in enumerate(counts):
            if int(count) != steps:
                self._barrier.fail(f"drain() after {steps} steps",
                                   f"rank {rank} has taken {count}: all ranks must take the same "
                                   "number. A GradScaler that skips steps must be given to "
                                   "attach(scaler=...)")
        self._attachment.drain(self._moments.now())

    def _group_of(self, wish: Optional[dist.ProcessGroup]) -> dist.ProcessGroup:
        if self._ddp is not None:
            if wish not in (None, self._ddp.process_group):
                raise ValueError("attach: process_group= is for a plain model; DDP has its own")
            return self._ddp.process_group
        group = wish if wish is not None else dist.group.WORLD
        if group is None:
            raise RuntimeError("attach: call torch.distributed.init_process_group() first")
        return group

    def _begin_together(self, tensors: list[torch.Tensor]) -> None:
        """Gives all ranks the values of rank 0, like DDP."""
        where = meeting_device(self._group, self._device)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = flat_of([tensor.to(self._device) for tensor in alike]).to(where)
            dist.broadcast(flat.view(torch.uint8), group=self._group,
                           src=dist.get_global_rank(self._group, 0))
            put_back(flat, alike)

    def _alone(self, on: bool) -> None:
        """Lets the worker train alone between messages: turns off DDP's exchange, like
        no_sync(), and counts steps that a scaler skips."""
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = self._ddp.require_forward_param_sync = not on
        if self._scaler is not None and on:
            self._scaler_step = self._scaler.step
            self._scaler.step = self._step_by_scaler
        elif self._scaler is not None and self._scaler.step == self._step_by_scaler:
            self._scaler.step = self._scaler_step  # or a later handle would call ours

    def _step_by_scaler(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """A scaler that finds an Inf does not call the optimizer. The step still counts;
        otherwise the other workers would be one step ahead."""
        if not self._attached or unwrapped(optimizer) is not self._optimizer.optimizer:
            return self._scaler_step(optimizer, *args, **kwargs)
        before = self._attachment.steps()
        self._by_scaler = True
        try:
            result = self._scaler_step(optimizer, *args, **kwargs)
        finally:
            self._by_scaler = False
        if self._attachment.steps() == before:
            self._skipped = True
            self._after_step()
        return result

    def _is_skipped(self) -> Skipped:
        ddp = self._ddp
        if ddp is not None and (ddp.require_backward_grad_sync or ddp._join_config.enable):
            raise RuntimeError("delay: DDP averages gradients in this step, which delayed "
                               "averaging has turned off: Join, or something that sets "
                               "require_backward_grad_sync (Lightning does), has turned it on "
                               "again; give attach() the plain module")
        self._parameters.check_step(self._optimizer.optimizer)
        answer = self._look()
        if self._skipped is not True:
            self._moments.begin(self._attachment.steps(), self._attachment.fill)
        if not isinstance(self._skipped, torch.Tensor):
            self._count(self._skipped)
        return answer

    def _look(self) -> Skipped:
        """Whether gradients are finite; what the optimizer is told. On a device a fused optimizer
        takes a flag, and a GradScaler has looked already; else the host waits for backward."""
        scaled = self._late and self._by_scaler
        unsound: Union[bool, torch.Tensor] = self._attachment.begin_step(not scaled)
        if scaled:  # it has not called the optimizer if they are not, or left it a flag
            flag = getattr(self._optimizer.optimizer, "found_inf", None)
            self._skipped = False if flag is None else flag.clone()
            return False
        if self._late and self._optimizer.takes_flag():
            self._skipped = unsound
            return unsound
        self._skipped = bool(unsound)
        return self._skipped

    def look_at(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step of any optimizer of this process. One that wraps ours is no stranger."""
        mine = self._optimizer.optimizer
        if optimizer is mine or not self._attached:
            return
        if any(parameter in self._parameters.trainable for group in optimizer.param_groups
               for parameter in group["params"]):
            self._strange += 1
        if self._strange > 1:
            self._strange = 0
            raise RuntimeError(f"delay: another {type(optimizer).__name__} than the one given to "
                               "attach() steps this model, so nothing is averaged; detach(), and "
                               "attach() with that one")

    def _note_gradient(self) -> None:
        """Remembers the smallest gradient of a step: after the next backward it is another one."""
        self._smallest = next((parameter for parameter in self._by_size
                               if parameter.grad is not None), None)
        gradient = None if self._smallest is None else self._smallest.grad
        self._stepped = gradient, None if gradient is None else gradient._version

    def _check_stepped(self) -> None:
        """Gradients of one worker alone must not be stepped after detach()."""
        gradient, version = self._stepped
        if (self._smallest is not None and self._smallest.grad is gradient
                and gradient is not None and gradient._version == version):
            return
        if any(parameter.grad is not None and bool(parameter.grad.any())
               for _, parameter in self._parameters.averaged):
            raise RuntimeError("detach: gradients of this worker alone wait for step(); call "
                               "step(), or zero_grad() to drop them, first")

    def _after_step(self) -> None:
        self._strange = 0
        self._note_gradient()
        self._attachment.finish_step(self._moments.now(), self._skipped)
        if self._callbacks:
            self._tell(self.step_report)

    def _average_buffers(self) -> None:
        floats = [buffer for buffer in self._parameters.buffers() if buffer.is_floating_point()]
        if floats:
            flat = flat_of([buffer.to(self._device) for buffer in floats]).float()
            self._attachment.average(flat)
            put_back(flat, floats)
