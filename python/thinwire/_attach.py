"""_attach: thinwire.attach(), where everything begins."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Optional, Union, Unpack, overload

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ._delayed import DelayedHandle
from ._handle import Handle
from ._model import plain_model
from ._optimizers import AnyOptimizers, the_only
from ._reports import Callback, is_attached
from ._schemes import SchemeOptions


@overload
def attach(model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheme: str = "dgc", *,
           delay: Union[int, str], local_steps: int = 1, correction: str = "soft",
           process_group: Optional[dist.ProcessGroup] = None, timeout: Optional[float] = None,
           scaler: Any = None, check_every: int = 100, callback: Optional[Callback] = None,
           **options: Unpack[SchemeOptions]) -> DelayedHandle: ...


@overload
def attach(model: DistributedDataParallel, optimizer: Optional[AnyOptimizers] = None,
           scheme: str = "dgc", *, delay: None = None, exchange: str = "auto", fuse_mb: float = 0.0,
           timeout: Optional[float] = None, scaler: Any = None, check_every: int = 100,
           callback: Optional[Callback] = None, **options: Unpack[SchemeOptions]) -> Handle: ...


def attach(model: torch.nn.Module, optimizer: Optional[AnyOptimizers] = None, scheme: str = "dgc",
           *, delay: Union[None, int, str] = None, local_steps: Optional[int] = None,
           correction: Optional[str] = None, process_group: Optional[dist.ProcessGroup] = None,
           exchange: str = "auto", fuse_mb: float = 0.0, timeout: Optional[float] = None,
           scaler: Any = None, check_every: int = 100, callback: Optional[Callback] = None,
           **options: Unpack[SchemeOptions]) -> Union[Handle, DelayedHandle]:
    """Compresses the gradients of a DDP model, on the CPU or on CUDA, by `scheme`, from the next
    backward on.

    `options` are the scheme's: density=0.001, rank=4, ... They may also be in the text:
    scheme="dgc:density=0.001". thinwire.schemes() lists them all.

    `optimizer` may be a list: together the optimizers must step every parameter that DDP averages.
    A scheme that accumulates momentum itself (dgc, csc, signum, memory="momentum") takes over
    theirs; they must then be torch.optim.SGD. Combinations that make no sense raise an error here.

    exchange     "auto", or "split": split-reduce, whose traffic does not grow with the workers
    fuse_mb      summed buckets shorter than this many megabytes travel together
    timeout      seconds after which a silent rank is an error that names it; default: the process
                 group's timeout
    scaler       the torch.amp.GradScaler of this training, if it has one
    check_every  compare the replicas' weights every so many steps; 0: never
    callback     called with a StepReport after each step

    With delay= the model, plain or DDP, trains under delayed averaging instead: every worker trains
    on while messages are in flight.

    delay          D: a message is taken in D steps after it was sent. "auto:MOST" measures D, up to
                   MOST. 0 with local_steps=K is FedAvg
    local_steps    K: steps per message
    correction     how arriving updates are taken in: "soft", "ledger", "pull", "none", with options
                   as in "pull:rate=0.1"
    process_group  for a plain model; a DDP model brings its own
    """
    common: dict[str, Any] = {"timeout": timeout, "scaler": scaler, "check_every": check_every,
                              "callback": callback, "options": options}
    model = plain_model(model)
    if is_attached(model):
        raise RuntimeError("attach: this model, or one that shares its parameters, is attached "
                           "already. Change its handle by set_scheme(), or end it by detach(), "
                           "which with delay= allows another attach(). Without delay= wrap the "
                           "module in DDP anew: DDP takes one hook only")
    if delay is not None:
        if optimizer is None:
            raise ValueError("attach: delay= needs the optimizer, whose steps are what travels")
        if exchange != "auto" or fuse_mb != 0:
            raise ValueError("attach: exchange= and fuse_mb= clash with delay=, which has an "
                             "exchange of its own; leave them out")
        if local_steps is not None and local_steps < 1:
            raise ValueError(f"attach: local_steps={local_steps}: expected at least 1")
        return DelayedHandle(model, the_only(optimizer), scheme, delay=delay,
                             local_steps=1 if local_steps is None else local_steps,
                             correction="soft" if correction is None else correction,
                             process_group=process_group, **common)
    if local_steps is not None or correction is not None or process_group is not None:
        raise ValueError("attach: local_steps=, correction= and process_group= belong to delay=; "
                         "delay=0 with local_steps=K is FedAvg")
    if not isinstance(model, DistributedDataParallel):
        sharded = "FSDP" in type(model).__name__ or "FullySharded" in type(model).__name__
        advice = "it shards gradients; use DDP" if sharded else "wrap the model first"
        raise TypeError("attach: expected a torch.nn.parallel.DistributedDataParallel, got "
                        f"{type(model).__name__}; {advice}")
    if getattr(model, "_use_python_reducer", False):
        raise ValueError("attach: torch._dynamo.config.optimize_ddp is 'python_reducer', under "
                         "which DDP calls no C++ hook; leave it at True")
    if getattr(model, "skip_all_reduce_unused_params", False):
        raise ValueError("attach: DDP's skip_all_reduce_unused_params leaves buckets out of a "
                         "step, which every scheme needs whole; leave it off")
    if model._comm_hooks:
        own = getattr(model, "mixed_precision", None) is not None
        raise ValueError("attach: this DDP model has a communication hook already, and DDP takes "
                         "one only" + ("; mixed_precision= is one: use torch.autocast instead"
                                       if own else "; wrap the module in DDP anew"))
    return Handle(model, optimizer, scheme, exchange=exchange, fuse_mb=fuse_mb, **common)
