"""_attach: thinwire.attach(), where everything begins."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Optional, Union, overload

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ._delayed import DelayedLink
from ._link import Link
from ._optimizers import AnyOptimizers, as_list
from ._reports import Callback, is_attached


@overload
def attach(model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheme: str = "dgc", *, delay: Union[int, str], local_steps: int = 1,
           correction: str = "soft", process_group: Optional[dist.ProcessGroup] = None, timeout: Optional[float] = None, scaler: Any = None,
           check_every: int = 100, callback: Optional[Callback] = None, **options: Any) -> DelayedLink: ...


@overload
def attach(model: DistributedDataParallel, optimizer: Optional[AnyOptimizers] = None, scheme: str = "dgc", *, delay: None = None,
           exchange: str = "auto", fuse_mb: float = 0.0, timeout: Optional[float] = None, scaler: Any = None, check_every: int = 100,
           callback: Optional[Callback] = None, **options: Any) -> Link: ...


def attach(model: torch.nn.Module, optimizer: Optional[AnyOptimizers] = None, scheme: str = "dgc", *,
           delay: Union[None, int, str] = None, local_steps: Optional[int] = None, correction: Optional[str] = None,
           process_group: Optional[dist.ProcessGroup] = None, exchange: str = "auto", fuse_mb: float = 0.0, timeout: Optional[float] = None,
           scaler: Any = None, check_every: int = 100, callback: Optional[Callback] = None, **options: Any) -> Union[Link, DelayedLink]:
    """Lets the gradients of a DDP model travel by `scheme`; `options` are the scheme's (density=0.001, ...).

    `optimizer` may be a list: together they must step what DDP averages. Where the scheme
    accumulates momentum itself (dgc, csc, signum, memory="momentum"), it takes over theirs, and they
    must be torch.optim.SGD. Errors are raised here for combinations that make no sense.

    exchange     "auto", or "split": split-reduce, whose bytes do not grow with the number of workers
    fuse_mb      summed buckets shorter than this travel together
    timeout      seconds after which a silent rank is an error that names it; by default the process group's
    scaler       the torch.amp.GradScaler of this training, if there is one
    check_every  compare the replicas' weights every so many steps; 0: never
    callback     called with link.step_report after each step

    With delay= the model, plain or DDP, is under delayed averaging instead: every worker trains on while messages travel.

    delay          D: steps that a message may be under way, or "auto:MOST"; 0 with local_steps=K is FedAvg
    local_steps    K: steps per message
    correction     how what arrives is taken in: "soft", "ledger", "pull", "none", with options as in "pull:rate=0.1"
    process_group  of a plain model; DDP brings its own
    """
    common: dict[str, Any] = {"timeout": timeout, "scaler": scaler, "check_every": check_every, "callback": callback, "options": options}
    # torch.compile() calls the model that it was given.
    while isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
        model = inner
    if is_attached(model):
        raise RuntimeError("attach: this model has a link already; use its set_scheme() or, with delay=, its detach(). Or wrap the module anew: "
                           "DDP takes one hook only")
    if delay is not None:
        if optimizer is None:
            raise ValueError("attach: delay= needs the optimizer, whose steps are what travels")
        if exchange != "auto" or fuse_mb != 0:
            raise ValueError("attach: exchange= and fuse_mb= clash with delay=, which has an exchange of its own: all workers gather or sum, and a "
                             "message is one already; leave them out")
        if local_steps is not None and local_steps < 1:
            raise ValueError(f"attach: local_steps={local_steps}: expected at least 1")
        several = as_list(optimizer)
        if len(several) != 1:
            raise ValueError(f"attach: delay= takes one optimizer, got {len(several)}; "
                             "give one with several groups")
        return DelayedLink(model, several[0], scheme, delay=delay, local_steps=1 if local_steps is None else local_steps,
                           correction="soft" if correction is None else correction, process_group=process_group, **common)
    if local_steps is not None or correction is not None or process_group is not None:
        raise ValueError("attach: local_steps=, correction= and process_group= belong to delay=; delay=0 with local_steps=K is FedAvg")
    if not isinstance(model, DistributedDataParallel):
        sharded = "FSDP" in type(model).__name__ or "FullySharded" in type(model).__name__
        advice = "it shards gradients; use DDP" if sharded else "wrap the model first"
        raise TypeError("attach: expected a torch.nn.parallel.DistributedDataParallel, got "
                        f"{type(model).__name__}; {advice}")
    if getattr(model, "_use_python_reducer", False):
        raise ValueError("attach: torch._dynamo.config.optimize_ddp is 'python_reducer', under "
                         "which DDP calls no hook of C++; leave it at True")
    if getattr(model, "skip_all_reduce_unused_params", False):
        raise ValueError("attach: DDP's skip_all_reduce_unused_params leaves buckets out of a step, which every scheme needs whole; leave it off")
    return Link(model, optimizer, scheme, exchange=exchange, fuse_mb=fuse_mb, **common)
