"""_handle: the handles of an attached DDP model: Handle, made by attach(), and HookState, for
frameworks that take a state and a hook (Lightning's DDPStrategy, Accelerate)."""
# SPDX-License-Identifier: Apache-2.0
# No postponed annotations here, because DDP inspects a hook's annotations.
import gc
import weakref
from typing import Any, Callable, Mapping, Optional, Unpack

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._base import Base, Scheme
from ._model import Named, averaged_by, check_parameters
from ._momentum import Skipped
from ._optimizers import AnyOptimizers, check_cover
from ._reports import Callback, logger, mark
from ._schemes import SchemeOptions, with_momentum

# For measurements: False leaves it to DDP to copy gradients on a device into its buckets.
FILL = True


class Handle(Base):
    """An attached DDP model, whose gradients are compressed. attach() returns it."""

    def __init__(self, model: DistributedDataParallel, optimizer: Optional[AnyOptimizers],
                 scheme: str, **settings: Any) -> None:
        super().__init__(scheme, **settings)
        self._model = model
        named = averaged_by(model.reducer, model.module)
        check_parameters(named, ddp=True)
        self._names = {parameter: name for name, parameter in named}
        if optimizer is not None:
            self._bind(optimizer)
        else:
            self._text = with_momentum(self._text, None)
        try:
            self._connect(model.process_group, named)
            self._offer()
            fill = (FILL and self._late and model.gradient_as_bucket_view
                    and not getattr(model, "batched_grad_copy", False))
            _native.register_hook(model.reducer, self._connected, fill)
            self._take()
        except Exception:
            self._unbind()
            raise
        mark(model, True)
        if model.logger is not None:
            model.logger._set_comm_hook_name(f"thinwire {_native.parse(self._text)[0]}")
        self._say("%s", self._decided())
        self._warn_of_host(self._text)

    def _decided(self) -> str:
        assert self._group is not None
        taken = self._optimizer is not None and self._optimizer.taken
        held = ("momentum is the scheme's, taken over from SGD" if taken
                else "momentum is the optimizer's")
        if (self._device.type == "cuda" and self._optimizer is not None and self._scaler is None
                and self._optimizer.must_know):
            held += ", and its step() waits for the device; made with fused=True it would not"
        compared = f"every {self._check_every} steps" if self._check_every else "on request only"
        return (f"{self._text}, exchange {self._exchange}, {self._group.size()} workers, "
                f"{self._count_of_parameters} parameters; {held}; a silent rank is an error after "
                f"{self._timeout:g} s; replicas compared {compared}")

    def detach(self) -> None:
        """Ends compression: DDP uses its plain all-reduce from the next step on. The optimizer gets
        its momentum back, and anything not sent yet is added to the next gradient.

        All ranks call it between the same steps.
        """
        if not self._attached:
            return
        if self._optimizer is not None and not self._connected.skipped():
            self._optimizer.check_stepped("detach")
        self._exchange, self._fuse_bytes = "auto", 0
        self._change("dense")
        self._connected.set_void_as_nan(True)
        self._unbind()
        self._attached = False

    def set_scheme(self, scheme: Optional[str] = None, **options: Unpack[SchemeOptions]) -> None:
        """Changes the scheme or its options from the next step on: set_scheme("powersgd"),
        set_scheme(density=0.01). All ranks call it between the same steps.

        The new scheme takes over anything not sent yet. If it keeps no residual, that is added
        to the next gradient.
        """
        self._check_attached("set_scheme")
        super().set_scheme(scheme, **options)

    def schedule(self, plan: Mapping[int, Scheme]) -> None:
        """Changes the scheme by step: {500: "dgc:density=0.01", 2000: {"density": 0.001}} makes the
        first change after 500 steps."""
        self._check_attached("schedule")
        super().schedule(plan)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads this rank's state, or one of full_state_dict() or merge_states(), which may be of
        another number of workers. Call it between steps."""
        self._check_attached("load_state_dict")
        super().load_state_dict(state)

    def _check_attached(self, what: str) -> None:
        if not self._attached:
            raise RuntimeError(f"{what}: this model is detached; wrap it in DDP, attach again")

    def _facts(self) -> list[str]:
        return super()._facts() + ([] if self._attached else ["detached"])

    def _joining(self) -> bool:
        return bool(self._model._join_config.enable)

    def _ddp_model(self) -> Optional[DistributedDataParallel]:
        return self._model


class HookState(Base):
    """The state of thinwire.hook, for model.register_comm_hook(state, thinwire.hook).

    It may be made before torch.distributed is initialized, and connects with the first step.

    model      gives parameters their names in state_dict(); without it they are numbered
    optimizer  as in attach(); may also come later, by take_over(optimizer)

    The other arguments are those of attach().
    """

    def __init__(self, scheme: str = "dgc", *, model: Optional[torch.nn.Module] = None,
                 optimizer: Optional[AnyOptimizers] = None,
                 process_group: Optional[dist.ProcessGroup] = None, exchange: str = "auto",
                 fuse_mb: float = 0.0, timeout: Optional[float] = None, scaler: Any = None,
                 check_every: int = 100, callback: Optional[Callback] = None,
                 **options: Unpack[SchemeOptions]) -> None:
        super().__init__(scheme, exchange=exchange, fuse_mb=fuse_mb, timeout=timeout, scaler=scaler,
                         check_every=check_every, callback=callback, options=options)
        self._model, self._wish = model, process_group
        self._ddp: Optional[Callable[[], Optional[DistributedDataParallel]]] = None
        self._names = {parameter: name for name, parameter in self._named()}
        if optimizer is not None:
            self.take_over(optimizer)

    def take_over(self, optimizer: AnyOptimizers) -> None:
        """Says which optimizer (or list of optimizers) steps the model. Call it before the first
        step.

        A scheme that keeps momentum takes over the optimizer's.
        """
        if self._optimizer is not None or self._attachment is not None:
            raise RuntimeError("take_over: call it once, before the first step")
        self._bind(optimizer)
        try:
            self._offer()
            self._take()
        except Exception:
            self._unbind()
            raise

    def _is_skipped(self) -> Skipped:
        if self._attachment is None and not self._is_rehearsal():
            raise RuntimeError("the optimizer stepped, but thinwire.hook was never called; is it "
                               "registered on the DDP model? (Lightning leaves hooks out on the "
                               "CPU: see docs/howto/lightning.md)")
        return super()._is_skipped()

    def _named(self) -> Named:
        if self._model is None:
            return []
        return [(name.replace("_orig_mod.", ""), parameter)
                for name, parameter in self._model.named_parameters() if parameter.requires_grad]

    def _wished_group(self) -> Optional[dist.ProcessGroup]:
        if self._wish is not None or not dist.is_initialized():
            return self._wish
        return dist.group.WORLD

    def _ready(self) -> "_native.Attachment":
        if self._attachment is None:
            if self._optimizer is None:
                self._text = with_momentum(self._text, None)
            reducer, named = self._reducer(), self._named()
            if self._model is not None:
                if reducer is not None:
                    named = averaged_by(reducer, self._model)
                check_parameters(named, ddp=True)
            elif self._optimizer is not None and reducer is not None:
                check_cover(self._optimizer.shown,
                            {parameter: f"parameter{place}" for place, parameter
                             in enumerate(_native.averaged_parameters(reducer))})
            self._connect(self._group_now(), named)
            self._count_of_parameters = sum(parameter.numel() for parameter in self._averaged())
            self._hand_over(self._velocity)
            self._velocity = {}
            self._say("%s as a plain hook, %d workers", self._text,
                      self._group.size() if self._group else 1)
        return self._connected

    def _averaged(self) -> list[torch.Tensor]:
        reducer = self._reducer()
        return super()._averaged() if reducer is None else _native.averaged_parameters(reducer)

    def _reducer(self) -> Optional[Any]:
        """The reducer of the DDP model that has this state. DDP does not tell us which one, but
        its list of hooks does."""
        if self._ddp is None:
            found = (thing for thing in gc.get_objects()
                     if issubclass(type(thing), DistributedDataParallel)
                     and any(state is self for _, state in thing._comm_hooks))
            ddp = next(found, None)
            self._ddp = (lambda: None) if ddp is None else weakref.ref(ddp)
            if ddp is None:
                logger.warning("the DDP model of this hook was not found (gc.freeze()?): with "
                               "find_unused_parameters use attach()")
        ddp = self._ddp()
        return None if ddp is None else ddp.reducer

    def _ddp_model(self) -> Optional[DistributedDataParallel]:
        return self._ddp() if self._ddp is not None else None


def thinwire_hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's communication hook: model.register_comm_hook(HookState("dgc"), thinwire.hook)."""
    _native.run_plain(state._ready(), bucket, state._reducer())
    buffer = bucket.buffer()
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[] if buffer.device.type == "cpu" else [buffer.device])
    # DDP reads the buffers after the call for the last bucket, which has waited for all of them; on
    # CUDA its stream has.
    future.set_result(buffer)
    return future


hook = thinwire_hook  # DDP's logging data shows the long name
