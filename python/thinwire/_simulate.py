"""_simulate: thinwire.simulate(), N virtual workers in one process: what a scheme does to a model,
without DDP."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import gc
import time
import weakref
from typing import Any, Callable, Iterator, Mapping, Optional, Unpack

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._base import Base
from ._model import Named, check_modules, check_parameters, plain_model
from ._momentum import Skipped, is_sharded
from ._optimizers import AnyOptimizers, as_list, watch_all
from ._reports import Callback, is_attached, mark, shares_parameters
from ._schemes import SchemeOptions
from ._shares import Buffers, Gradients, Layout, Memory, cut_batch
from ._simulation_report import SimulationReport
from ._state import merge_states


class _Workers:
    """Stands for a process group where only its size matters."""

    def __init__(self, count: int) -> None:
        self._count = count

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return self._count


class Simulation(Base):
    """Virtual workers around one model. simulate() returns it."""

    _made_by = "simulate"

    def __init__(self, model: torch.nn.Module, optimizer: AnyOptimizers, workers: int, scheme: str,
                 *, link: Optional[str], find_unused_parameters: bool,
                 bucket_cap_mb: Optional[float], **settings: Any) -> None:
        super().__init__(scheme, timeout=None, check_every=0, **settings)
        self._model, self._link = model, link
        self._group = _Workers(workers)  # type: ignore[assignment]
        named = _named(model)
        _check(model, named)
        self._parameters = [parameter for _, parameter in named]
        self._device = self._parameters[0].device
        self._texts = [name for name, _ in named]
        self._names = {parameter: name for name, parameter in named}
        self._count_of_parameters = sum(parameter.numel() for parameter in self._parameters)
        self._find_unused = find_unused_parameters
        self._layout = Layout(self._parameters, bucket_cap_mb, find_unused_parameters)
        self._memory: list[Memory] = []
        self._inside: Optional[int] = None  # the worker whose share this is
        self._last: Optional[int] = None  # whose gradients .grad shows, if any
        self._left: Gradients = []  # these
        self._versions: list[int] = []  # ... their versions
        self._sums: Optional[list[int]] = None  # ... and sums, once all workers had a share
        self._before: Gradients = []  # .grad before the first share of this step
        self._lost = ""  # why gradients of this step were dropped
        self._arrived: dict[int, None] = {}  # worker 0's parameters, in the order of its backward
        self._buffers = Buffers(model)
        self._factors: dict[str, float] = {}
        self._seconds, self._counted, self._now = 0.0, 0, 0.0  # of shares
        self._hooks: list[Any] = []
        self._unpatch: Callable[[], Any] = lambda: None
        self._unwatch: Callable[[], Any] = lambda: None
        # The mark ends with us: who loses a simulation may begin another.
        self._mark = torch.nn.ModuleList([model])
        try:
            # Before those of _bind(), which ask whether the step is skipped.
            for one in as_list(optimizer):
                if is_sharded(one):
                    raise ValueError("simulate: a ZeroRedundancyOptimizer keeps its state in "
                                     "several processes; give the optimizer that it wraps")
                self._hooks.append(one.register_step_pre_hook(self._before_step))
            self._bind(optimizer)
            self._check_others()
            self._open(named)
            self._offer()
            self._take()
        except Exception:
            self._unbind()
            raise
        self._allocate()
        self._unwatch = watch_all(self)
        _simulations.add(self)
        mark(self._mark, True)
        held = "the scheme's" if self._bound.taken else "the optimizer's"
        self._say("%s, exchange %s, %d virtual workers, %d parameters; momentum is %s",
                  self._text, self._exchange, workers, self._count_of_parameters, held)

    def _open(self, named: Named) -> None:
        workers = _native.VirtualWorkers(
            count=self.workers, names=named, scheme=self._text, exchange=self._exchange,
            fuse_bytes=self._fuse_bytes, void_as_nan=self._scaler is not None)
        self._native_workers, self._all = workers, workers.attachments()
        self._attachment = self._all[0]
        self._attachment.set_prompt(False)
        if self._callbacks:
            self._listen()
        self._watch_backward()
        me = weakref.ref(self)
        for attachment in self._all:
            attachment.on_begin(lambda: {} if (found := me()) is None else found._factors)
        if self._scaler is not None:
            # Makes its scale, if it has none yet.
            self._scaler.scale(torch.zeros((), device=self._device))
            for attachment in self._all:
                attachment.set_scale(self._scaler._scale)
            self._watch_scaler()

    def _check_others(self) -> None:
        """Refuses optimizers that also train what nobody averages: that would get the sum of the
        workers' gradients."""
        known: set[torch.Tensor] = set(self._model.parameters())
        for other in list(_simulations):
            known.update(other._parameters)
        for optimizer in self._bound.shown:
            for at, group in enumerate(optimizer.param_groups):
                for parameter in group["params"]:
                    if parameter.requires_grad and parameter not in known:
                        raise ValueError(
                            f"simulate: group {at} of the {type(optimizer).__name__} has a "
                            f"parameter of shape {tuple(parameter.shape)} that is not in the "
                            "model, so the gradients of all workers would be summed there, and "
                            "not averaged; give the module that holds all parameters of the "
                            "optimizer (torch.nn.ModuleList([one, other])), or freeze that one by "
                            "requires_grad_(False)")

    # -- what it is

    @property
    def workers(self) -> int:
        """The number of virtual workers."""
        assert self._group is not None
        return self._group.size()

    @property
    def _bound(self) -> Any:
        assert self._optimizer is not None
        return self._optimizer

    @property
    def _attachments(self) -> list[_native.Attachment]:
        return self._all

    def _ranks(self) -> list[int]:
        return list(range(self.workers))

    def _add_others(self, value: torch.Tensor) -> None:
        """All workers are here."""

    def _warn_of_host(self, text: str) -> None:
        """Every scheme of a simulation works on the host."""

    def report(self) -> SimulationReport:
        """Sums since the start, of one worker: steps, bytes, ratio, seconds. Its step_seconds()
        estimates the time of a step over a link."""
        found = [attachment.report() for attachment in self._all]
        sums = dict(found[0])
        for key in ("payload_bytes", "sent_bytes", "received_bytes"):
            sums[key] = round(sum(one[key] for one in found) / len(found))
        sums["ratio"] = sums["dense_bytes"] / max(1, sums["payload_bytes"])
        compute = self._seconds / self._counted / self.workers if self._counted else 0.0
        over = self._native_workers.seconds_over
        report = SimulationReport(**sums, workers=self.workers, compute_seconds=compute,
                                  link=self._link)
        object.__setattr__(report, "_over", over)  # it is frozen
        return report

    # -- shares

    def shares(self, *batches: Any) -> Iterator[tuple[int, Any]]:
        """Lets all workers have their share in turn: `for worker, (x, y) in sim.shares(batch)`.

        One batch is cut into equal parts along the first dimension of its tensors. N batches are
        one per worker: sim.shares(*itertools.islice(loader, 8)).
        """
        self._check_attached("shares")
        if len(batches) == self.workers:
            parts = list(batches)
        elif len(batches) == 1:
            parts = cut_batch(batches[0], self.workers)
        else:
            raise ValueError(f"shares: expected one batch, which is cut, or {self.workers}, one "
                             f"per worker; got {len(batches)}")
        return self._walk(parts)

    def _walk(self, parts: list[Any]) -> Iterator[tuple[int, Any]]:
        for number, part in enumerate(parts):
            with self.worker(number):
                yield number, part

    @contextlib.contextmanager
    def worker(self, number: int) -> Iterator[None]:
        """Inside, the model is worker `number`'s: its backward adds to that worker's gradients.

        Every worker needs at least one backward per step; several add up.
        """
        self._enter(number)
        try:
            self._buffers.enter(number)
            begin = self._clock()
            yield
            self._now += self._clock() - begin
            self._leave(number)
        except BaseException as error:
            # A generator does not learn which exception has left the loop that it feeds.
            how = ("by break, or by an exception" if isinstance(error, GeneratorExit)
                   else f"by {type(error).__name__}")
            self._drop(f"the share of worker {number} was ended {how}, which dropped the gradients "
                       "of all workers")
            raise
        finally:
            self._inside = None
            self._buffers.leave()

    def _clock(self) -> float:
        """What a GPU was given to do counts when it is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _enter(self, number: int) -> None:
        self._check_attached("worker")
        if not 0 <= number < self.workers:
            raise ValueError(f"worker {number}: there are {self.workers} workers, numbered from 0")
        if self._inside is not None:
            raise RuntimeError(f"worker {number}: the share of worker {self._inside} has not ended")
        self._look()
        if self._last is None:
            self._check_model()
            self._before = [parameter.grad for parameter in self._parameters]
            self._check_cleared()
            self._buffers.begin()
        memory = self._memory[number]
        if not any(memory.used):
            memory.take(self._before)
        self._show(memory.shown())
        self._inside = number

    def _leave(self, number: int) -> None:
        memory, gradients = self._memory[number], [one.grad for one in self._parameters]
        for name, gradient, parameter in zip(self._texts, gradients, self._parameters):
            if gradient is not None and (gradient.is_sparse or gradient.dtype != parameter.dtype):
                raise TypeError(f"worker {number}: the gradient of parameter '{name}' is "
                                f"{gradient.layout} of {gradient.dtype}; expected a dense one of "
                                f"{parameter.dtype}")
        self._left, self._last = memory.take(gradients), number
        self._show(self._left)
        self._versions = memory.versions()
        ready = all(any(one.used) for one in self._memory)  # not in each share: a pass over all
        self._sums = memory.sums() if ready else None

    def _show(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self._parameters, gradients):
            parameter.grad = gradient

    def _look(self) -> None:
        """Has somebody changed .grad since the last share? zero_grad() drops the step so far. Other
        changes would be lost, because averages come only with the exchange."""
        if self._last is None:
            return
        now = [parameter.grad for parameter in self._parameters]
        memory = self._memory[self._last]
        if (all(one is left for one, left in zip(now, self._left))
                and memory.versions() == self._versions
                and (self._sums is None or memory.sums() == self._sums)):
            return
        shown = [(one, left) for one, left in zip(now, self._left)
                 if one is not None or left is not None]
        if all(one is None or (one is left and not one.any()) for one, left in shown):
            self._drop("zero_grad() has dropped the gradients of all workers since their shares",
                       to_none=any(one is None for one in now))
            return
        raise RuntimeError("simulate: .grad has changed between the workers' shares and the "
                           "exchange (clip_grad_norm_? zero_grad() of one of several optimizers?). "
                           "Until then it has the gradient of one worker only: call sim.exchange() "
                           "after the last share; then .grad has the averages, and step() makes no "
                           "exchange")

    def look_at(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step of any optimizer of this process. One that steps our parameters with the
        gradient of one worker raises here, because no call of ours need follow."""
        if self._last is None and self._inside is None:
            return
        mine = {id(parameter) for parameter in self._parameters}
        if any(optimizer is one for one in self._bound.shown) or not any(
                id(parameter) in mine for group in optimizer.param_groups
                for parameter in group["params"]):
            return
        kind = type(optimizer).__name__
        if self._inside is None:  # otherwise the share ends by this error, and drops them
            self._drop(f"another {kind} stepped before the exchange, which dropped the gradients "
                       "of all workers")
        raise RuntimeError(f"simulate: a {kind} that simulate() was not given has stepped "
                           "parameters of this model before the exchange, with the gradient of "
                           "one worker: these weights are wrong now. Load them anew, and give "
                           "simulate() the optimizer that steps; to change it, call sim.detach(), "
                           "then simulate() again")

    def _drop(self, why: str, to_none: bool = True) -> None:
        for memory in self._memory:
            memory.forget()
        self._show([None if to_none or one.grad is None else torch.zeros_like(one)
                    for one in self._parameters])
        self._last, self._left, self._lost, self._now = None, [], why, 0.0

    def _check_cleared(self) -> None:
        if not self._bound.taken:
            return
        for name, gradient in zip(self._texts, self._before):
            if gradient is not None and bool(gradient.any()):
                raise RuntimeError(f"parameter '{name}': .grad still holds the average of the last "
                                   f"step, and scheme '{self._text}' would apply its momentum to "
                                   "that again; call zero_grad() before the first share")

    def _check_model(self) -> None:
        now = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        if len(now) == len(self._parameters) and all(
                one is known for one, known in zip(now, self._parameters)):
            return
        ours, here = set(self._parameters), {parameter: name for name, parameter in _named(
            self._model)}
        new = [name for parameter, name in here.items() if parameter not in ours]
        gone = [name for name, parameter in zip(self._texts, self._parameters)
                if parameter not in here]
        what = (f"parameter '{new[0]}' requires gradients, and did not when simulate() was called"
                if new else f"parameter '{gone[0]}' was frozen, removed or replaced since "
                "simulate() was called" if gone else "its parameters have another order")
        raise RuntimeError(f"simulate: the model has changed: {what}; call sim.detach(), then "
                           "simulate() again")

    # -- backward

    def _watch_backward(self) -> None:
        me = weakref.ref(self)  # a parameter's hook would keep us alive

        def hook_of(place: int) -> Callable[[torch.Tensor], None]:
            def arrived(_: torch.Tensor) -> None:
                found = me()
                if found is not None:
                    found._has_arrived(place)

            return arrived

        for place, parameter in enumerate(self._parameters):
            hook = parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                hook_of(place))
            self._hooks.append(hook)

    def _has_arrived(self, place: int) -> None:
        if self._inside is None:
            raise RuntimeError(
                f"simulate: a backward has reached parameter '{self._texts[place]}' outside of any "
                "worker's share; run it in `for worker, part in sim.shares(batch)`, or `with "
                "sim.worker(number)`. For ordinary steps call sim.detach() first")
        self._memory[self._inside].used[place] = True
        if self._inside == 0:
            self._arrived.pop(place, None)
            self._arrived[place] = None

    # -- the step

    def exchange(self) -> None:
        """Averages the gradients of all workers now: .grad then has what DDP would have there after
        backward, for clip_grad_norm_() or a look at it. Without it optimizer.step() does this."""
        self._check_attached("exchange")
        if not self._is_pending():
            raise RuntimeError("exchange: no worker has had a share since the last one"
                               + self._why())
        self._exchange_now()

    def _why(self) -> str:
        return f" ({self._lost})" if self._lost else ""

    def _is_pending(self) -> bool:
        if self._inside is not None:
            raise RuntimeError(f"simulate: the share of worker {self._inside} has not ended; "
                               "optimizer.step() and exchange() come after the last share")
        self._look()
        return self._last is not None

    def _exchange_pending(self) -> None:
        if self._is_pending():
            self._exchange_now()
        elif self._lost:
            raise RuntimeError(f"simulate: a step without gradients: {self._lost}; run the shares "
                               "of all workers again before step()")

    def _exchange_now(self) -> None:
        self._check_used()
        self._factors = self._bound.factors()
        try:
            self._average()
        except BaseException as error:  # also a callback's, or Ctrl-C
            self._drop(f"the exchange was ended by {type(error).__name__}, which dropped the "
                       "gradients of all workers")
            raise

    def _average(self) -> None:
        for memory in self._memory:
            memory.complete()
        counts = [sum(used) for used in zip(*(memory.used for memory in self._memory))]
        buckets = self._layout.buckets
        self._native_workers.exchange(
            cut=[[self._parameters[i] for i in bucket] for bucket in buckets],
            gradients=[memory.flats for memory in self._memory], used=counts)
        averages = self._memory[0].parts
        self._show([average.clone() if count else before for average, count, before
                    in zip(averages, counts, self._before)])
        if self._connected.taken() == 2:  # the first one warmed up
            self._seconds, self._counted = 0.0, 0
        self._seconds += self._now
        self._counted += 1
        self._last, self._left, self._lost, self._now = None, [], "", 0.0
        if self._layout.settle(list(self._arrived)):
            self._allocate()
        for memory in self._memory:
            memory.forget()

    def _allocate(self) -> None:
        self._memory = []  # first: it may be large
        self._memory = [Memory(self._parameters, self._layout.buckets) for _ in self._ranks()]

    def _check_used(self) -> None:
        for number, memory in enumerate(self._memory):
            if not any(memory.used):
                raise RuntimeError(f"simulate: worker {number} of {self.workers} had no backward "
                                   f"in this step{self._why()}; every worker needs a share with a "
                                   "backward before optimizer.step()")
            if not self._find_unused and not all(memory.used):
                name = self._texts[memory.used.index(False)]
                raise RuntimeError(f"simulate: parameter '{name}' got no gradient from worker "
                                   f"{number}; DDP would refuse that too. If the model does not "
                                   "use it in every step, say find_unused_parameters=True, also "
                                   "to DDP; if never, freeze it by requires_grad_(False)")

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """With a closure, the shares run inside the step."""
        self._check_scaler()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._exchange_pending()
            return None

        def exchanged() -> Any:
            loss = closure()
            self._exchange_pending()
            return loss

        rest = {key: value for key, value in kwargs.items() if key != "closure"}
        return (args[0], exchanged, *args[2:]), rest

    def _watch_scaler(self) -> None:
        """A GradScaler looks at gradients before it calls step()."""
        scaler: Any = self._scaler
        me, original = weakref.ref(self), scaler._unscale_grads_
        patched = "_unscale_grads_" in scaler.__dict__  # by another simulation

        def unscale(optimizer: torch.optim.Optimizer, *rest: Any) -> Any:
            found = me()
            if found is not None and found._optimizer is not None and any(
                    optimizer is one.shown for one in found._optimizer):
                found._exchange_pending()
            return original(optimizer, *rest)

        def unpatch() -> None:
            if scaler.__dict__.get("_unscale_grads_") is not unscale:
                return  # another one calls ours, which does nothing any more
            if patched:
                scaler._unscale_grads_ = original
            else:
                del scaler._unscale_grads_

        scaler._unscale_grads_ = unscale
        self._unpatch = unpatch

    def _is_skipped(self) -> Skipped:
        if self._connected.taken() == 0 and not self._is_rehearsal():
            raise RuntimeError("simulate: optimizer.step() came before any worker had a share; run "
                               "`for worker, part in sim.shares(batch)` first")
        return super()._is_skipped()

    # -- between steps

    def state_dict(self) -> dict[str, Any]:
        """The state of all workers, as Handle.full_state_dict() returns it: N processes can load
        it, and the other way round. Call it between steps."""
        self._check_between("state_dict")
        shards = [self._shard(attachment, rank) for rank, attachment in enumerate(self._all)]
        if "version" not in shards[0]:  # for torch.distributed.checkpoint
            return {name: value for shard in shards for name, value in shard.items()}
        return merge_states(shards)

    def full_state_dict(self, dst: int = 0) -> dict[str, Any]:
        """The same as state_dict()."""
        return self.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a state of state_dict(), Handle.full_state_dict() or merge_states(), which may be
        of another number of workers. Call it between steps."""
        self._check_between("load_state_dict")
        super().load_state_dict(state)

    def set_scheme(self, scheme: Optional[str] = None, **options: Unpack[SchemeOptions]) -> None:
        """Changes the scheme, or options of it, from the next step on, as Handle.set_scheme()."""
        self._check_between("set_scheme")
        super().set_scheme(scheme, **options)

    def check_replicas(self) -> None:
        """Virtual workers share one copy of the weights, so there is nothing to compare."""

    def detach(self) -> None:
        """Ends the simulation. The optimizer gets its momentum back; what was not sent is dropped.
        """
        if not self._attached:
            return
        self._check_between("detach")
        if not self._connected.skipped():
            self._bound.check_stepped("detach")
        self._change("dense")
        self._unbind()
        self._attached = False

    def _unbind(self) -> None:
        super()._unbind()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._unpatch()
        self._unwatch()
        _simulations.discard(self)
        mark(self._mark, False)

    def _check_between(self, what: str) -> None:
        self._check_attached(what)
        if self._is_pending():
            raise RuntimeError(f"{what}: gradients of workers wait for the exchange; call it after "
                               "optimizer.step(), or after zero_grad(), which drops them")

    def _check_attached(self, what: str) -> None:
        if not self._attached:
            raise RuntimeError(f"{what}: this simulation was ended by detach(); call simulate() "
                               "again")


_simulations: weakref.WeakSet[Simulation] = weakref.WeakSet()  # until detach()


def _named(model: torch.nn.Module) -> Named:
    return [(name.replace("_orig_mod.", ""), parameter)
            for name, parameter in model.named_parameters() if parameter.requires_grad]


def _check(model: torch.nn.Module, named: Named) -> None:
    check_parameters(named, ddp=True)
    check_modules(model, {parameter for _, parameter in named})


def _is_taken(model: torch.nn.Module) -> bool:
    return is_attached(model) or shares_parameters(model)


_DELAYED = ("delay", "local_steps", "correction")


def simulate(model: torch.nn.Module, optimizer: AnyOptimizers, workers: int, scheme: str = "dgc", *,
             exchange: str = "auto", fuse_mb: float = 0.0, link: Optional[str] = None,
             find_unused_parameters: bool = False, bucket_cap_mb: Optional[float] = None,
             scaler: Any = None, callback: Optional[Callback] = None,
             **options: Unpack[SchemeOptions]) -> Simulation:
    """Trains a plain model as `workers` processes with DDP and attach() would, in this one process:

        sim = thinwire.simulate(model, optimizer, workers=8, scheme="dgc", density=0.01)
        for batch in loader:
            optimizer.zero_grad()
            for worker, (x, y) in sim.shares(batch):
                loss_fn(model(x), y).backward()
            optimizer.step()                            # exchanges, then steps
        print(sim.report())

    Weights have the bits of N processes that see the same shares, with DDP's own buckets.
    torch.distributed need not be initialized.

    `scheme`, `options`, `exchange`, `fuse_mb`, `callback` and the hand-over of momentum are those
    of attach().

    link                    for estimates in report(), as "100mbit,1ms"
    find_unused_parameters  as DDP's: a worker may leave parameters out
    bucket_cap_mb           as DDP's; default: 25, and 1 for the first bucket
    scaler                  the torch.amp.GradScaler of this training, if it has one
    """
    if any(name in options for name in _DELAYED):
        raise ValueError("simulate: delayed averaging (delay=, local_steps=, correction=) is not "
                         "simulated; run `thinwire train --delay`, or processes with attach()")
    if isinstance(model, DistributedDataParallel) or "FSDP" in type(model).__name__:
        raise TypeError(f"simulate: expected a plain module, got {type(model).__name__}; give the "
                        "module inside, or use attach()")
    if workers < 1:
        raise ValueError(f"simulate: workers={workers}: expected at least 1")
    model = plain_model(model)
    if _is_taken(model):
        gc.collect()  # a lost simulation and its optimizer hold each other
        if _is_taken(model):
            raise RuntimeError("simulate: this model, or one that shares its parameters, is "
                               "attached or simulated already; call detach() there first. (A "
                               "simulation without a name lives as long as its optimizer)")
    if link is not None:
        _native.average_seconds(link, max(workers, 2), 0, 1, True)  # rejects a bad link now
    return Simulation(model, optimizer, workers, scheme, exchange=exchange, fuse_mb=fuse_mb,
                      link=link, find_unused_parameters=find_unused_parameters,
                      bucket_cap_mb=bucket_cap_mb, scaler=scaler, callback=callback,
                      options=options)
