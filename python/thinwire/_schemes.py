"""_schemes: scheme texts such as "dgc:density=0.001", and the momentum that a scheme holds.

Momentum as the schemes keep it, in the entries of a state, by parameter ("layer.weight/u"). With m
the momentum and SGD's momentum_buffer b, which becomes m*b + g in each step:

    /u of dgc, csc and memory=momentum      b
    /u in Nesterov's form                   m*b
    /m of signum, a running mean            (1 - m)*b

Residuals (/v) are sums of gradients while the optimizer holds the momentum, and sums of velocities
(of b) while the scheme does.
"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Mapping, NamedTuple, Optional, Sequence, TypedDict, Union

import torch

from . import _native
from ._state import LOCAL, SUMMED, Entries


class SchemeOptions(TypedDict, total=False):
    """The options of all schemes. thinwire.schemes() says which scheme has which."""

    bits: int
    block: int
    bucket: int
    chunk: int
    clip: float
    clip_norm: Literal["global", "bucket"]
    density: float
    error: Literal["average", "local"]
    feedback: Union[bool, Literal["on", "off"]]
    form: Literal["packed", "coded"]
    group: int
    index: Literal["golomb", "elias_fano", "gap", "smallest"]
    mask: Union[bool, Literal["auto", "pool", "on", "off"]]
    memory: Literal["none", "residual", "momentum"]
    momentum: float
    nesterov: Union[bool, Literal["on", "off"]]
    norm: Literal["l2", "max"]
    quota: Literal["bucket", "layer"]
    rank: int
    rate: float
    rounding: Literal["nearest", "random"]
    seed: int
    select: Literal["steered", "exact"]
    tau: float
    travel: Literal["gather", "sum"]
    values: Literal["f32", "f16", "bf16", "log8", "log4", "sign"]
    warm_start: Union[bool, Literal["on", "off"]]
    warmup: int


@dataclass(frozen=True)
class SchemeInfo:
    """What a scheme is and takes.

    name        for attach(scheme=...)
    summary     one sentence
    paper       where it was published; empty if nowhere
    bits        bits per element, as a formula of the options
    reducible   payloads can be summed on their way, so traffic does not grow with the workers
    biased      the decoded gradient differs from the given one on average
    feedback    what was not sent is kept and sent later
    stochastic  draws random numbers
    momentum    holds the momentum itself, instead of the optimizer
    options     by name: (default, what it does)
    variants    texts of the scheme with its most useful options
    """

    name: str
    summary: str
    paper: str
    bits: str
    reducible: bool
    biased: bool
    feedback: bool
    stochastic: bool
    momentum: bool
    options: dict[str, tuple[str, str]]
    variants: list[str]

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.summary} ({self.bits} bits per element)"]
        lines += [f"  {name}={default}  {text}" for name, (default, text) in self.options.items()]
        return "\n".join(lines)


def schemes() -> list[SchemeInfo]:
    """All schemes, including those of load_scheme()."""
    return [SchemeInfo(**about) for about in _native.schemes()]


# -- texts


def text_of(scheme: str, options: Mapping[str, Any]) -> str:
    """The scheme and its options as one text. `options` override those in the text."""
    name, inside = _native.parse(scheme)
    for key, value in options.items():
        inside[key] = ("on" if value else "off") if isinstance(value, bool) else str(value)
    given = ",".join(f"{key}={value}" for key, value in sorted(inside.items()))
    return f"{name}:{given}" if given else name


def options_of(text: str) -> dict[str, str]:
    return _native.parse(text)[1]


def takes(text: str, option: str) -> bool:
    """Whether the scheme in this text has an option of this name."""
    name = _native.parse(text)[0]
    return any(option in scheme.options for scheme in schemes() if scheme.name == name)


def scheme_for_delay(scheme: str, options: Mapping[str, Any]) -> str:
    """The text for delay=. The updates that are sent already include the optimizer's momentum,
    so a scheme with momentum runs without it."""
    text = str(_native.config(text_of(scheme, options)))
    if not _native.keeps_momentum(text) or not takes(text, "momentum"):
        return text
    if float(options_of(text).get("momentum", 0)) != 0:
        raise ValueError(f"scheme '{text}' says momentum={options_of(text)['momentum']}, but with "
                         "delay= updates already include the optimizer's momentum; leave it out")
    return str(_native.config(text_of(text, {"momentum": 0})))


# -- momentum that moves from the optimizer to the scheme


class Held(NamedTuple):
    """The momentum that a scheme applies."""

    text: str
    momentum: float
    nesterov: bool
    decays: bool  # weight decay goes through it too
    factor: float  # what the scheme keeps, in units of momentum_buffers
    # It can follow the optimizer's groups to another momentum by scaling what it keeps. A pool
    # (dgc's mask) cannot: its size depends on the factor.
    follows: bool


def held_by(text: str) -> Held:
    options = options_of(text)
    momentum, nesterov = float(options["momentum"]), options.get("nesterov") == "on"
    usual = takes(text, "nesterov")
    factor = momentum if nesterov and momentum != 0 else 1.0
    follows = usual and not nesterov and momentum != 0 and not _pools(text)
    return Held(text, momentum, nesterov, usual, factor, follows)


def _pools(text: str) -> bool:
    """Of a scheme in plain momentum's form."""
    return takes(text, "mask") and options_of(text).get("mask", "auto") in ("auto", "pool")


def momentum_of(optimizers: Sequence[torch.optim.Optimizer], scheme: str) -> tuple[float, bool]:
    """SGD's momentum and nesterov, which the scheme takes over; the largest of several momenta.
    Raises if the two do not match."""
    groups = [group for optimizer in optimizers for group in _groups_of_sgd(optimizer, scheme)]
    momenta = sorted({float(group["momentum"]) for group in groups})
    forms = {bool(group["nesterov"]) for group in groups}
    dampening = max(float(group["dampening"]) for group in groups)
    if dampening != 0:
        raise ValueError(f"scheme '{scheme}' has no dampening; the optimizer has {dampening}: set "
                         "it to 0")
    nesterov = True in forms or options_of(scheme).get("nesterov") == "on"
    if len(forms) > 1 or (len(momenta) > 1 and (nesterov or not takes(scheme, "nesterov"))):
        raise ValueError(f"scheme '{scheme}': Nesterov's form and signum have one momentum for all "
                         f"parameters; the optimizer's groups have momentum {momenta}, nesterov "
                         f"{sorted(forms)}: give them the same, or momentum without nesterov")
    if len(momenta) > 1 and options_of(scheme).get("mask") == "pool":
        raise ValueError(f"scheme '{scheme}': a pool has one momentum for all parameters; the "
                         f"optimizer's groups have {momenta}: give them the same, or mask=off")
    return momenta[-1], forms.pop()


def _differ(optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Whether groups have different momenta."""
    return len({group["momentum"] for one in optimizers for group in one.param_groups}) > 1


def _groups_of_sgd(optimizer: torch.optim.Optimizer, scheme: str) -> list[dict[str, Any]]:
    kind = getattr(optimizer, "optim", optimizer)  # the one inside a ZeroRedundancyOptimizer
    if not isinstance(kind, torch.optim.SGD):
        raise ValueError(f"scheme '{scheme}' accumulates momentum itself and needs "
                         f"torch.optim.SGD, whose momentum it takes over; got "
                         f"{type(kind).__name__}. With Adam use dense, bf16, int8 or powersgd "
                         "(docs/schemes.md, 'With Adam')")
    return optimizer.param_groups


def with_momentum(text: str, optimizers: Optional[Sequence[torch.optim.Optimizer]]) -> str:
    """The text, completed with the optimizers' momentum if the scheme keeps momentum."""
    if not _native.keeps_momentum(text):
        return text
    given = options_of(text)
    if optimizers is None:
        if "momentum" not in given:
            raise ValueError(f"scheme '{text}' accumulates momentum itself: set it "
                             "(momentum=0.9, and run the optimizer with momentum=0), or let it "
                             "take over the optimizer's momentum")
        return text
    momentum, nesterov = momentum_of(optimizers, text)
    if _pools(text) and _differ(optimizers):
        text = text_of(text, {"mask": "off"})
    if nesterov and not takes(text, "nesterov"):
        raise ValueError(f"scheme '{text}' has no Nesterov form; make the optimizer with "
                         "nesterov=False")
    if "momentum" in given:
        if momentum not in (0.0, float(given["momentum"])):
            raise ValueError(f"scheme '{text}' says momentum={given['momentum']}, the optimizer "
                             f"{momentum}; say it once")
        return text
    extra: dict[str, Any] = {"momentum": momentum}
    if takes(text, "nesterov") and "nesterov" not in given:
        extra["nesterov"] = nesterov
    return text_of(text, extra)


# -- momentum in the entries of a state


def factor_of(text: str, ending: str) -> float:
    """The scheme keeps momentum_buffers times this factor."""
    options = options_of(text)
    momentum = float(options.get("momentum", 0.9))
    if ending == "/m":
        return 1 - momentum
    return momentum if options.get("nesterov") == "on" and momentum != 0 else 1.0


def ending_for(text: str) -> str:
    return "/m" if text.partition(":")[0] == "signum" else "/u"


def form_of(text: str) -> tuple[str, float]:
    """Whether two schemes have the same form, so that each can use the other's velocities."""
    return ending_for(text), factor_of(text, ending_for(text))


def take_out(entries: Entries, text: str) -> dict[str, torch.Tensor]:
    """Removes the velocities from a state of scheme `text`, and returns them as
    momentum_buffers."""
    found: dict[str, torch.Tensor] = {}
    for name in [name for name in entries if name.endswith(("/u", "/m"))]:
        _, value = entries.pop(name)
        found[name[:-2]] = value / factor_of(text, name[-2:])
    return found


def put_in(entries: Entries, text: str, velocity: Mapping[str, torch.Tensor]) -> None:
    """Converts momentum_buffers (flat, by parameter) to velocities of a state of scheme `text`."""
    ending = ending_for(text)
    factor = factor_of(text, ending)
    for name, value in velocity.items():
        entries[name + ending] = (SUMMED if ending == "/u" else LOCAL, value * factor)


def convert(entries: Entries, before: str, text: str) -> None:
    """Converts the velocities of a state from one scheme's form to another's. In the same form they
    keep their bits."""
    if form_of(before) != form_of(text):
        put_in(entries, text, take_out(entries, before))


def to_gradients(entries: Entries, momenta: Mapping[str, float]) -> None:
    """The optimizer holds the momentum again: converts /v from velocities into gradients whose
    velocities have the same sum."""
    for name, momentum in momenta.items():
        if name + "/v" in entries:
            share, value = entries[name + "/v"]
            entries[name + "/v"] = (share, value * (1 - momentum))


def to_velocities(entries: Entries, text: str, momenta: Mapping[str, float]) -> None:
    """The scheme holds the momentum from now on: moves /v, which holds gradients, to /u, where
    it goes through the momentum with the next gradient."""
    if ending_for(text) != "/u":
        return  # signum has no /v; the attachment adds it to the next gradient
    nesterov = options_of(text).get("nesterov") == "on"
    for name, momentum in momenta.items():
        if momentum == 0 or name + "/v" not in entries:
            continue
        share, value = entries[name + "/v"]
        _, velocity = entries.get(name + "/u", (share, torch.zeros_like(value)))
        entries[name + "/u"] = (share, velocity + (value if nesterov else value / momentum))
        if not nesterov:
            entries[name + "/v"] = (share, torch.zeros_like(value))
