"""_options: from what a user writes to one text, "dgc:density=0.001", and what an optimizer has to do with it."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Optional

import torch

from . import _native


def text_of(scheme: str, options: dict[str, Any]) -> str:
    """The scheme and its options as one text; options given apart win over those in the text."""
    name, inside = _native.parse(scheme)
    for key, value in options.items():
        inside[key] = ("on" if value else "off") if isinstance(value, bool) else str(value)
    return name + (":" if inside else "") + ",".join(f"{key}={value}" for key, value in sorted(inside.items()))


def options_of(text: str) -> dict[str, str]:
    return _native.parse(text)[1]


def takes(text: str, option: str) -> bool:
    """Whether the scheme of this text knows an option of this name."""
    name = _native.parse(text)[0]
    return any(option in scheme["options"] for scheme in _native.schemes() if scheme["name"] == name)


def momentum_of(optimizer: torch.optim.Optimizer, scheme: str) -> tuple[float, bool]:
    """What SGD does that the scheme is to do instead. Raises where the two do not fit."""
    if not isinstance(optimizer, torch.optim.SGD):
        raise ValueError(
            f"scheme '{scheme}' accumulates momentum itself and needs torch.optim.SGD, whose momentum it takes over; got "
            f"{type(optimizer).__name__}. With Adam use dense, bf16, int8 or powersgd (docs/schemes.md, 'With Adam')")
    seen = {(group["momentum"], group["nesterov"], group["dampening"]) for group in optimizer.param_groups}
    if len(seen) != 1:
        raise ValueError(f"scheme '{scheme}' has one momentum for all parameters; the optimizer's groups have {sorted(seen)} "
                         "(momentum, nesterov, dampening): give them the same")
    momentum, nesterov, dampening = seen.pop()
    if dampening != 0:
        raise ValueError(f"scheme '{scheme}' has no dampening; the optimizer has {dampening}: set it to 0")
    return float(momentum), bool(nesterov)


def with_momentum(text: str, optimizer: Optional[torch.optim.Optimizer]) -> str:
    """The text with the optimizer's momentum in it, where the scheme keeps momentum."""
    if not _native.keeps_momentum(text):
        return text
    given = options_of(text)
    if optimizer is None:
        if "momentum" not in given:
            raise ValueError(f"scheme '{text}' accumulates momentum itself: say how much (momentum=0.9, and run the optimizer "
                             "with momentum=0), or let it take over the optimizer's")
        return text
    momentum, nesterov = momentum_of(optimizer, text)
    if nesterov and not takes(text, "nesterov"):
        raise ValueError(f"scheme '{text}' has no Nesterov form; make the optimizer with nesterov=False")
    if "momentum" in given:
        if momentum not in (0.0, float(given["momentum"])):
            raise ValueError(f"scheme '{text}' says momentum={given['momentum']}, the optimizer {momentum}; say it once")
        return text
    extra: dict[str, Any] = {"momentum": momentum}
    if takes(text, "nesterov") and "nesterov" not in given:
        extra["nesterov"] = nesterov
    return text_of(text, extra)
