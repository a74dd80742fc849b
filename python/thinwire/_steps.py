"""_steps: what a Handle or a HookState does in each step: it reports, checks, and skips steps."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import sys
import weakref
from typing import Any, Optional

import torch
import torch.distributed as dist

from . import _native
from ._momentum import Skipped
from ._optimizers import Optimizers
from ._reports import Callback, Reports, StepReport, logger
from ._schemes import takes


def _calling_scaler() -> Optional[torch.amp.GradScaler]:
    """The GradScaler whose step() calls that of the optimizer, if one does."""
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
        if isinstance(caller, torch.amp.GradScaler) and caller.is_enabled():
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


class Steps(Reports):
    """Wraps a native attachment, which exists from the first step on at the latest."""

    _attached = True
    _made_by = "attach"  # for errors

    def __init__(self, callback: Optional[Callback], scaler: Any) -> None:
        super().__init__(callback)
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._attachment: Optional[_native.Attachment] = None
        self._optimizer: Optional[Optimizers] = None
        self._names: dict[torch.Tensor, str] = {}
        self._told_of_clipping = False
        self._looked_for_scaler = False
        self._steps_seen, self._rehearsal = 0, False
        self._device = torch.device("cpu")  # of the gradients
        self._late = False  # on a device the host learns later what a step was

    @property
    def _connected(self) -> _native.Attachment:
        if self._attachment is None:
            raise RuntimeError("no step was taken yet")
        return self._attachment

    def _group_now(self) -> dist.ProcessGroup:
        """The group. A HookState also has one before its first step."""
        group = self._group if self._group is not None else self._wished_group()
        if group is None:
            raise RuntimeError("no process group yet: call init_process_group() first")
        return group

    def _wished_group(self) -> Optional[dist.ProcessGroup]:
        return None

    def _averaged(self) -> list[torch.Tensor]:
        return list(self._names)

    def _joining(self) -> bool:
        return False

    def _ddp_model(self) -> Optional[torch.nn.Module]:
        return None

    def on_step(self, callback: Callback, every: int = 1) -> None:
        """Calls `callback` with the StepReport of every `every`-th step, on every rank."""
        super().on_step(callback, every)
        self._listen()

    def _after_step(self) -> None:
        raise NotImplementedError

    def _listen(self) -> None:
        """Makes the native attachment report steps. The callback must not keep this object
        alive, because DDP holds the attachment."""
        if self._attachment is None:
            return
        after = weakref.WeakMethod(self._after_backward)

        def tell(report: dict[str, Any]) -> None:
            method = after()
            if method is not None:
                method(StepReport(**report))

        self._attachment.on_step(tell)

    def _after_backward(self, report: StepReport) -> None:
        if not self._attached:
            return
        self._tell(report)
        if self._late or self._optimizer is None:
            self._count(report.skipped)
        if self._optimizer is None:  # otherwise its step does what follows
            if report.skipped and self._scaler is None:
                self._drop_gradients()
            self._after_step()

    def _drop_gradients(self) -> None:
        """Called after a skipped step. Without gradients, no optimizer changes weights or its
        own state. DDP writes gradients at the end of backward."""
        def drop() -> None:
            for parameter in self._averaged():
                parameter.grad = None

        queue = torch.autograd.Variable._execution_engine.queue_callback
        if torch._C._current_graph_task_id() != -1:  # otherwise a rank that has joined early
            queue(lambda: queue(drop))  # after the callbacks queued now, one of which is DDP's

    def _is_skipped(self) -> Skipped:
        # A rehearsal must not accumulate weight decay. An optimizer with momentum
        # creates its buffers.
        if self._is_rehearsal():
            return self._optimizer is not None and self._optimizer.taken
        self._check_scaler()
        skipped = self._attachment is not None and self._outcome(self._attachment)
        if not self._late:
            self._count(skipped is True)
        if skipped is not True and self._optimizer is not None and self._optimizer.taken:
            self._notice_clipping()
        return skipped

    def _check_scaler(self) -> None:
        """In the first step: memory has the scale of the gradients, so it must follow."""
        if self._looked_for_scaler:
            return
        calling = _calling_scaler()
        if calling is not None and calling is not self._scaler:
            given = "none" if self._scaler is None else "another one"
            raise RuntimeError(f"a GradScaler calls optimizer.step(), and {self._made_by}() was "
                               f"given {given}: what the scheme keeps would not follow its scale, "
                               "and it would not see skipped steps. Give it: "
                               f"{self._made_by}(..., scaler=scaler)")
        self._looked_for_scaler = True

    def _outcome(self, attachment: _native.Attachment) -> Skipped:
        """On a device, to ask the host is to wait for the exchange. A GradScaler sees the NaN of a
        skipped step by itself, and skips it; other optimizers may take a flag on the device."""
        if self._late and self._scaler is not None and self._device.type != "cpu":
            return False
        if self._late and self._optimizer is not None and self._optimizer.can_skip_on_device:
            if not self._optimizer.uses_flag:
                return False
            flag = attachment.not_taken()
            if flag is not None:
                return flag
        return attachment.skipped()

    def _is_rehearsal(self) -> bool:
        """Whether this is a step with zero gradients and no backward before it: torch's
        get_state_dict() makes one so that the optimizer has a state."""
        steps = self._attachment.taken() if self._attachment is not None else 0
        before, self._steps_seen = self._steps_seen, steps
        # A skipped step leaves zeros after a backward.
        self._rehearsal = steps == before and not (
            self._attachment is not None and self._attachment.skipped()) and all(
            parameter.grad is None or not parameter.grad.any() for parameter in self._averaged())
        return self._rehearsal

    def _notice_clipping(self) -> None:
        """Warns about clipping after the exchange. When the scheme holds the momentum, averages
        are velocities, and clipping them loses the rest for all later steps."""
        assert self._attachment is not None
        share = self._attachment.share_kept()
        if share == 1:
            return
        unscaled = share * (self._scaler.get_scale() if self._scaler is not None else 1.0)
        is_scale = abs(unscaled - 1) < 1e-5 or math.frexp(share)[0] == 0.5
        if self._told_of_clipping or not 0 < share < 1 - 1e-5 or is_scale:
            return
        self._told_of_clipping = True
        way = ("by attach(..., clip=NORM)" if takes(self._text, "clip")
               else "with scheme dgc and its option clip=")
        logger.warning("gradients were multiplied by %.3g after the exchange. If that is "
                       "clip_grad_norm_: the averages of '%s' are velocities, and clipping them "
                       "loses the rest; let the scheme clip gradients instead, %s",
                       share, self._text, way)
