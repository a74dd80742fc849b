"""_plain: the form (state, hook) that frameworks take for DDP: Lightning's DDPStrategy, Accelerate."""
# SPDX-License-Identifier: Apache-2.0
# No postponed annotations here: DDP looks at those of a hook.
import gc
import weakref
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._base import Base, averaged_by, check_parameters
from ._log import logger
from ._optimizers import AnyOptimizers
from ._options import with_momentum
from ._reports import Callback


class State(Base):
    """The state of thinwire.hook. Made before or after torch.distributed is; connects with the first step.

    model      gives the parameters their names in state_dict(); without it they are called by their order in the model
    optimizer  as in attach(); may also come later: state.take_over(optimizer)
    """

    def __init__(self, scheme: str = "dgc", *, model: Optional[torch.nn.Module] = None,
                 optimizer: Optional[AnyOptimizers] = None, process_group: Optional[dist.ProcessGroup] = None,
                 exchange: str = "auto", fuse_mb: float = 0.0, timeout: Optional[float] = None, scaler: Any = None,
                 check_every: int = 100, callback: Optional[Callback] = None, **options: Any) -> None:
        super().__init__(scheme, exchange=exchange, fuse_mb=fuse_mb, timeout=timeout, scaler=scaler, check_every=check_every,
                         callback=callback, options=options)
        self._model, self._wish = model, process_group
        self._ddp: Optional[Callable[[], Optional[DistributedDataParallel]]] = None
        self._names = {parameter: name for name, parameter in self._named()}
        if optimizer is not None:
            self.take_over(optimizer)

    def take_over(self, optimizer: AnyOptimizers) -> None:
        """This optimizer (or several, as a list) steps the model. Before the first step.

        Its momentum becomes the scheme's, where that keeps one.
        """
        if self._optimizer is not None or self._link is not None:
            raise RuntimeError("take_over: call it once, before the first step")
        self._bind(optimizer)
        try:
            self._offer()
            self._take()
        except Exception:
            self._unbind()
            raise

    def _is_void(self) -> bool:
        if self._link is None and not self._is_rehearsal():
            raise RuntimeError("the optimizer steps, but thinwire.hook was never called: is it registered on the DDP model? (Lightning "
                               "leaves hooks out on the CPU: docs/pytorch.md has what to do)")
        return super()._is_void()

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        if self._model is None:
            return []
        return [(name.replace("_orig_mod.", ""), parameter)
                for name, parameter in self._model.named_parameters() if parameter.requires_grad]

    def _wished_group(self) -> Optional[dist.ProcessGroup]:
        if self._wish is not None or not dist.is_initialized():
            return self._wish
        return dist.group.WORLD

    def _ready(self) -> "_native.Link":
        if self._link is None:
            if self._optimizer is None:
                self._text = with_momentum(self._text, None)
            reducer, named = self._reducer(), self._named()
            if self._model is not None:
                if reducer is not None:
                    named = averaged_by(reducer, self._model)
                check_parameters(named)
            self._connect(self._group_now(), named)
            self._hand_over(self._velocity)
            self._velocity = {}
            self._say("%s as a plain hook, %d workers", self._text, self._group.size() if self._group else 1)
        return self._native

    def _averaged(self) -> list[torch.Tensor]:
        reducer = self._reducer()
        return super()._averaged() if reducer is None else _native.averaged_parameters(reducer)

    def _reducer(self) -> Optional[Any]:
        """Of the DDP model that has this state. Nobody tells us which; DDP's list of hooks does."""
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


def thinwire_hook(state: State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For model.register_comm_hook(state, thinwire.hook) and frameworks that call it."""
    _native.run_plain(state._ready(), bucket, state._reducer())
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())  # DDP looks at it after the last bucket's call, which has waited for all
    return future


hook = thinwire_hook  # under its long name in DDP's logging data
