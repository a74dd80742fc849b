"""_parameters: the parameters of a model under delayed averaging: which are averaged, and whether
that still holds.

Trained ones are averaged, frozen ones begin alike. One that is trained only later would drift apart
without a word, so every step looks.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from ._momentum import TRACE

Named = list[tuple[str, torch.Tensor]]

_ANEW = "call link.detach() on all ranks, then attach() anew"


def plain_model(model: torch.nn.Module) -> torch.nn.Module:
    """Without torch.compile's wrapper, which hides a DDP."""
    inner = getattr(model, "_orig_mod", None)
    return plain_model(inner) if isinstance(inner, torch.nn.Module) else model


class Parameters:
    def __init__(self, model: torch.nn.Module) -> None:
        self._module = model
        self._ignored: set[str] = set()  # each worker's own, as under DDP
        if isinstance(model, DistributedDataParallel):
            self._module, self._ignored = model.module, set(model.parameters_to_ignore)
        if any(isinstance(part, DistributedDataParallel) for part in self._module.modules()):
            raise ValueError("attach: a part of this model is wrapped in DDP, which would average "
                             "its gradients besides; give attach() the DDP model, or a plain one")
        self.averaged: Named = []
        self.frozen: Named = []
        for name, parameter in self._named():
            if not parameter.requires_grad:
                self.frozen.append((name, parameter))
            elif parameter.numel() > 0:
                self.averaged.append((name, parameter))
        self._trainable = set(self._module.parameters()) - {frozen for _, frozen in self.frozen}
        self._ids = {id(parameter) for parameter in self._trainable}  # quicker to ask, per step

    def _named(self) -> Named:
        return [(name.replace("_orig_mod.", ""), parameter)
                for name, parameter in self._module.named_parameters() if name not in self._ignored]

    def buffers(self) -> list[torch.Tensor]:
        return [buffer for name, buffer in self._module.named_buffers()
                if buffer.numel() > 0 and name not in self._ignored]

    def lines(self) -> list[str]:
        """What all ranks must have alike."""
        return [f"parameter '{name}' of shape {tuple(parameter.shape)}"
                f"{'' if parameter.requires_grad else ', frozen'}"
                for name, parameter in self._named()]

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """At attach: it trains what is averaged, and nothing else."""
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        strange = sum(parameter.requires_grad for parameter in held - self._trainable)
        if strange:
            raise ValueError(f"delay: the optimizer has {strange} parameters that the model has "
                             "not; they would drift apart. Give attach() the module that holds "
                             "them all")
        missing = [name for name, parameter in self.averaged if parameter not in held]
        if missing:
            raise ValueError(f"delay: {len(missing)} parameters require gradients, but are not in "
                             f"the optimizer: {_few(missing)}. Give them to it, freeze them by "
                             "requires_grad_(False), or attach only the part that it trains")
        self._check_momentum(optimizer)

    def check_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Before weights move: the optimizer trains what it trained at attach."""
        for name, parameter in self.frozen:
            if parameter.requires_grad:
                raise RuntimeError(f"delay: parameter '{name}' was frozen at attach() and requires "
                                   f"gradients now; workers would drift apart: {_ANEW}")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._ids and parameter.grad is not None:
                    raise RuntimeError(f"delay: the optimizer moves {self._name_of(parameter)}, "
                                       "which it did not at attach(); workers would drift apart: "
                                       + _ANEW)
        self._check_momentum(optimizer)

    def check_model(self) -> None:
        """Between steps: the model has the parameters that are averaged."""
        now = dict(self._named())
        gone = [name for name, parameter in self.averaged + self.frozen
                if now.pop(name, None) is not parameter]
        if gone or now:
            raise RuntimeError("delay: the model has other parameters than at attach(): "
                               f"{_few(gone or list(now))}. Something has replaced them "
                               "(load_state_dict(assign=True), pruning, a new layer), and the link "
                               "does not know the new ones; make the optimizer anew, detach(), "
                               "and attach anew")

    def _check_momentum(self, optimizer: torch.optim.Optimizer) -> None:
        if any(TRACE in group for group in optimizer.param_groups):
            raise ValueError("delay: a scheme holds this optimizer's momentum, or held it when the "
                             "state that it has loaded was saved; with delay= momentum is the "
                             "optimizer's. Detach the synchronous link, then save")

    def _name_of(self, parameter: torch.Tensor) -> str:
        for name, other in self._module.named_parameters():
            if other is parameter:
                return f"parameter '{name}'"
        return f"a parameter of shape {tuple(parameter.shape)} that is not the model's"


def _few(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (", ..." if len(names) > 3 else "")
