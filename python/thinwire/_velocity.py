"""_velocity: SGD's momentum_buffer as the schemes keep it, and what becomes of it between schemes.

All of it works on the entries of a state, by parameter: "layer.weight/u". With m the momentum and
SGD's momentum_buffer b, which becomes m*b + g:

    /u of dgc, csc and memory=momentum      b
    /u in Nesterov's form                   m*b
    /m of signum, a running mean            (1 - m)*b

What waits in /v is of gradients where the optimizer has the momentum, and of velocities (sums of b)
where the scheme has it.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Mapping

import torch

from ._options import options_of
from ._state import SUMMED, Entries

_LOCAL = 2
_ENDINGS = ("/u", "/m")


def factor_of(text: str, ending: str) -> float:
    """The scheme keeps this many momentum_buffers."""
    options = options_of(text)
    momentum = float(options.get("momentum", 0.9))
    if ending == "/m":
        return 1 - momentum
    return momentum if options.get("nesterov") == "on" and momentum != 0 else 1.0


def ending_for(text: str) -> str:
    return "/m" if text.partition(":")[0] == "signum" else "/u"


def form_of(text: str) -> tuple[str, float]:
    """Two schemes of the same form understand each other's velocities."""
    return ending_for(text), factor_of(text, ending_for(text))


def take_out(entries: Entries, text: str) -> dict[str, torch.Tensor]:
    """Removes the velocities of a state of scheme `text`, and returns them as momentum_buffers."""
    found: dict[str, torch.Tensor] = {}
    for name in [name for name in entries if name.endswith(_ENDINGS)]:
        _, value = entries.pop(name)
        found[name[:-2]] = value / factor_of(text, name[-2:])
    return found


def put_in(entries: Entries, text: str, velocity: Mapping[str, torch.Tensor]) -> None:
    """momentum_buffers, flat and by parameter, as velocities of a state of scheme `text`."""
    ending = ending_for(text)
    factor = factor_of(text, ending)
    for name, value in velocity.items():
        entries[name + ending] = (SUMMED if ending == "/u" else _LOCAL, value * factor)


def to_gradients(entries: Entries, momenta: Mapping[str, float]) -> None:
    """The optimizer has the momentum again: /v, of velocities, becomes what gives their sum when
    momentum is applied to it."""
    for name, momentum in momenta.items():
        if name + "/v" in entries:
            share, value = entries[name + "/v"]
            entries[name + "/v"] = (share, value * (1 - momentum))


def to_velocities(entries: Entries, text: str, momenta: Mapping[str, float]) -> None:
    """The scheme has the momentum from now on: /v, of gradients, goes through its momentum with the
    next gradient."""
    if ending_for(text) != "/u":
        return  # signum has no /v: the link adds it to the next gradient
    nesterov = options_of(text).get("nesterov") == "on"
    for name, momentum in momenta.items():
        if momentum == 0 or name + "/v" not in entries:
            continue
        share, value = entries[name + "/v"]
        _, velocity = entries.get(name + "/u", (share, torch.zeros_like(value)))
        entries[name + "/u"] = (share, velocity + (value if nesterov else value / momentum))
        if not nesterov:
            entries[name + "/v"] = (share, torch.zeros_like(value))
