"""_link: the link of a DDP model whose gradients travel compressed."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Optional

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._base import Base, averaged_by, check_parameters
from ._optimizers import AnyOptimizers
from ._options import with_momentum
from ._reports import mark


class Link(Base):
    """Made by attach(): one DDP model whose gradients travel compressed."""

    def __init__(self, model: DistributedDataParallel, optimizer: Optional[AnyOptimizers], scheme: str, **settings: Any) -> None:
        super().__init__(scheme, **settings)
        self._model = model
        named = averaged_by(model.reducer, model.module)
        check_parameters(named)
        self._names = {parameter: name for name, parameter in named}
        if optimizer is not None:
            self._bind(optimizer)
        else:
            self._text = with_momentum(self._text, None)
        try:
            self._connect(model.process_group, named)
            self._offer()
            _native.register_hook(model.reducer, self._native)
            self._take()
        except Exception:
            self._unbind()
            raise
        mark(model, True)
        if model.logger is not None:
            model.logger._set_comm_hook_name(f"thinwire {_native.parse(self._text)[0]}")
        self._attached = True
        self._say("%s", self._decided(named))

    def _decided(self, named: list[tuple[str, torch.Tensor]]) -> str:
        assert self._group is not None
        count = sum(parameter.numel() for _, parameter in named)
        held = "momentum is the scheme's, taken over from SGD" if self._optimizer and self._optimizer.taken else "momentum is the optimizer's"
        compared = f"every {self._check_every} steps" if self._check_every else "on request only"
        return (f"{self._text}, exchange {self._exchange}, {self._group.size()} workers, {count} parameters; {held}; a silent rank is an "
                f"error after {self._timeout:g} s; replicas compared {compared}")

    def detach(self) -> None:
        """Ends compression: DDP's plain all-reduce from the next step on, and the optimizer has its momentum again.

        What was not sent yet goes into the next gradient. All ranks call it between the same steps.
        """
        if not self._attached:
            return
        self._exchange, self._fuse_bytes = "auto", 0
        self._change("dense")
        self._native.set_void_as_nan(True)
        self._unbind()
        self._attached = False

    def set_scheme(self, scheme: Optional[str] = None, **options: Any) -> None:
        if not self._attached:
            raise RuntimeError("set_scheme: this link is detached")
        super().set_scheme(scheme, **options)

    def _joining(self) -> bool:
        return bool(self._model._join_config.enable)
