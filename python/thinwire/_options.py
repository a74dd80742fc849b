"""_options: from what a user writes to one text, "dgc:density=0.001", and what an optimizer has to do with it."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

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


class Held(NamedTuple):
    """The momentum that a scheme applies."""

    text: str
    momentum: float
    nesterov: bool
    decays: bool  # weight decay has it, too
    factor: float  # of momentum_buffers that are kept: see _velocity
    # Another momentum in the optimizer's groups can be followed, by multiplying what was gathered.
    follows: bool


def held_by(text: str) -> Held:
    options = options_of(text)
    momentum, nesterov, usual = (
        float(options["momentum"]),
        options.get("nesterov") == "on",
        takes(text, "nesterov"),
    )
    factor = momentum if nesterov and momentum != 0 else 1.0
    return Held(text, momentum, nesterov, usual, factor, usual and not nesterov and momentum != 0)


def momentum_of(optimizers: Sequence[torch.optim.Optimizer], scheme: str) -> tuple[float, bool]:
    """What SGD does that the scheme is to do instead; of several momenta the largest. Raises where
    the two do not fit."""
    groups = [group for optimizer in optimizers for group in _groups_of_sgd(optimizer, scheme)]
    momenta = sorted({float(group["momentum"]) for group in groups})
    forms = {bool(group["nesterov"]) for group in groups}
    dampening = max(float(group["dampening"]) for group in groups)
    if dampening != 0:
        raise ValueError(
            f"scheme '{scheme}' has no dampening; the optimizer has {dampening}: set it to 0"
        )
    nesterov = True in forms or options_of(scheme).get("nesterov") == "on"
    if len(forms) > 1 or (len(momenta) > 1 and (nesterov or not takes(scheme, "nesterov"))):
        raise ValueError(
            f"scheme '{scheme}': Nesterov's form and signum have one momentum for all parameters; "
            f"the optimizer's groups have momentum {momenta}, nesterov {sorted(forms)}: give them "
            "the same, or momentum without nesterov"
        )
    return momenta[-1], forms.pop()


def _groups_of_sgd(optimizer: torch.optim.Optimizer, scheme: str) -> list[dict[str, Any]]:
    kind = getattr(optimizer, "optim", optimizer)  # a ZeroRedundancyOptimizer's own
    if not isinstance(kind, torch.optim.SGD):
        raise ValueError(
            f"scheme '{scheme}' accumulates momentum itself and needs torch.optim.SGD, whose "
            f"momentum it takes over; got "
            f"{type(kind).__name__}. With Adam use dense, bf16, int8 or powersgd (docs/schemes.md, "
            f"'With Adam')"
        )
    return optimizer.param_groups


def with_momentum(text: str, optimizers: Optional[Sequence[torch.optim.Optimizer]]) -> str:
    """The text with the optimizers' momentum in it, where the scheme keeps momentum."""
    if not _native.keeps_momentum(text):
        return text
    given = options_of(text)
    if optimizers is None:
        if "momentum" not in given:
            raise ValueError(
                f"scheme '{text}' accumulates momentum itself: say how much (momentum=0.9, and run "
                f"the optimizer "
                "with momentum=0), or let it take over the optimizer's"
            )
        return text
    momentum, nesterov = momentum_of(optimizers, text)
    if nesterov and not takes(text, "nesterov"):
        raise ValueError(
            f"scheme '{text}' has no Nesterov form; make the optimizer with nesterov=False"
        )
    if "momentum" in given:
        if momentum not in (0.0, float(given["momentum"])):
            raise ValueError(
                f"scheme '{text}' says momentum={given['momentum']}, the optimizer {momentum}; say "
                f"it once"
            )
        return text
    extra: dict[str, Any] = {"momentum": momentum}
    if takes(text, "nesterov") and "nesterov" not in given:
        extra["nesterov"] = nesterov
    return text_of(text, extra)
