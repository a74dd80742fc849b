"""_model: the parameters of a model: which of them are averaged, and whether that still holds."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._momentum import TRACE

Named = list[tuple[str, torch.Tensor]]

_BUCKET_BYTES = 25 * 2**20
_ANEW = "call handle.detach() on all ranks, then attach() anew"


_HALVES = (torch.bfloat16, torch.float16)


def check_parameters(named: Named, ddp: bool = False, delay: bool = False) -> None:
    """Refuses parameters that no scheme can compress. `ddp`: DDP's gradients are compressed, which
    may be halves. With it, and with `delay`, they may be on CUDA; inspect() wants the CPU."""
    for name, parameter in named:
        kind, half = parameter.device.type, parameter.dtype in _HALVES
        fits = kind == "cpu" or ((ddp or delay) and kind == "cuda")
        if (parameter.dtype == torch.float32 or (ddp and half)) and fits:
            continue
        if not fits:
            advice = ("inspect() works on the CPU only" if kind == "cuda"
                      else "move the model to the CPU or to CUDA first")
        elif parameter.dtype.is_complex:
            advice = "keep real and imaginary part as one float32 parameter (torch.view_as_real)"
        else:
            why = ("; delay= and inspect() do not take halves, whose rounding is as large as the "
                   "updates that travel" if half else "")
            advice = ("keep parameters in float32 (model.float()) and compute under torch.autocast"
                      + why)
        where = "on the CPU or on CUDA" if ddp or delay else "on the CPU"
        expected = f"float32, bfloat16 or float16 {where}" if ddp else f"float32 {where}"
        raise ValueError(f"parameter '{name}': expected {expected}, got {parameter.dtype} on "
                         f"{parameter.device}; {advice}")
    if not named:
        raise ValueError("the model has no parameters that require gradients")
    if ddp or delay:
        _check_device(named)


def _check_device(named: Named) -> None:
    first, device = named[0][0], named[0][1].device
    for name, parameter in named:
        if parameter.device != device:
            raise ValueError(f"parameter '{name}' is on {parameter.device}, '{first}' on {device}; "
                             "keep the model on one device, and start one process per device")
    if device.type == "cuda" and not _native.has_cuda():
        raise ValueError("the model is on CUDA, and this build of thinwire has no CUDA; build it "
                         "where nvcc is found (docs/pytorch.md, 'On CUDA')")


def check_modules(model: torch.nn.Module, averaged: set[torch.Tensor]) -> None:
    """Refuses modules with sparse gradients."""
    for name, module in model.named_modules():
        if not isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            continue
        if module.sparse and module.weight in averaged:
            raise ValueError(f"module '{name}' is an {type(module).__name__} with sparse=True, "
                             "whose gradients are sparse tensors; schemes compress dense ones: "
                             "make it with sparse=False (sparse schemes send no zeros)")


def averaged_by(reducer: Any, model: torch.nn.Module) -> Named:
    """The parameters that DDP averages: not the frozen ones, nor those that it was told to ignore.
    The names are those without torch.compile."""
    averaged = set(_native.averaged_parameters(reducer))
    check_modules(model, averaged)
    return [(name.replace("_orig_mod.", ""), parameter)
            for name, parameter in model.named_parameters() if parameter in averaged]


def cut(named: Named) -> list[Named]:
    """Buckets of about 25 MB, from the last parameter to the first, as DDP has them. Each has a
    threshold and a collective of its own."""
    buckets: list[Named] = []
    room = 0
    for name, parameter in reversed(named):
        if room <= 0:
            buckets.append([])
            room = _BUCKET_BYTES
        buckets[-1].append((name, parameter))
        room -= parameter.numel() * parameter.element_size()
    return buckets


def plain_model(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside torch.compile's wrapper."""
    inner = getattr(model, "_orig_mod", None)
    return plain_model(inner) if isinstance(inner, torch.nn.Module) else model


class Parameters:
    """The parameters of a model under delayed averaging.

    Trained parameters are averaged, frozen ones begin alike. A parameter that is trained only later
    would drift apart silently, so every step checks.
    """

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
        self._empty: Named = []
        for name, parameter in self._named():
            if not parameter.requires_grad:
                self.frozen.append((name, parameter))
            elif parameter.numel() > 0:
                self.averaged.append((name, parameter))
            else:
                self._empty.append((name, parameter))
        self.trainable = set(self._module.parameters()) - {frozen for _, frozen in self.frozen}
        self._ids = {id(parameter) for parameter in self.trainable}  # quicker to ask, per step

    def _named(self) -> Named:
        return [(name.replace("_orig_mod.", ""), parameter)
                for name, parameter in self._module.named_parameters() if name not in self._ignored]

    def buffers(self) -> list[torch.Tensor]:
        return [buffer for name, buffer in self._module.named_buffers()
                if buffer.numel() > 0 and name not in self._ignored]

    def lines(self) -> list[str]:
        """One line per parameter, the same on all ranks."""
        return [f"parameter '{name}' of shape {tuple(parameter.shape)}"
                f"{'' if parameter.requires_grad else ', frozen'}"
                for name, parameter in self._named()]

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """At attach: the optimizer trains what is averaged, and nothing else."""
        for i, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if parameter.requires_grad and parameter not in self.trainable:
                    raise ValueError(f"attach: the optimizer has, in group {i}, a parameter of "
                                     f"shape {tuple(parameter.shape)} that the model does not "
                                     "have. Is it another model's optimizer? Else give attach() "
                                     "the module that holds all its parameters, or workers "
                                     "would drift apart")
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
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
        gone = [name for name, parameter in self.averaged + self.frozen + self._empty
                if now.pop(name, None) is not parameter]
        if gone or now:
            raise RuntimeError("delay: the model has other parameters than at attach(): "
                               f"{_few(gone or list(now))}. Something has replaced them "
                               "(load_state_dict(assign=True), pruning, a new layer); make the "
                               "optimizer anew, detach(), and attach anew")

    def _check_momentum(self, optimizer: torch.optim.Optimizer) -> None:
        if any(TRACE in group for group in optimizer.param_groups):
            raise ValueError("delay: a scheme holds this optimizer's momentum, or held it when the "
                             "state that it has loaded was saved; with delay= momentum is the "
                             "optimizer's. Call detach() of the synchronous handle, then save")

    def _name_of(self, parameter: torch.Tensor) -> str:
        for name, other in self._module.named_parameters():
            if other is parameter:
                return f"parameter '{name}'"
        return f"a parameter of shape {tuple(parameter.shape)} that is not the model's"


def _few(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (", ..." if len(names) > 3 else "")
