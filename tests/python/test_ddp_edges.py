"""test_ddp_edges: cases in which DDP does not deliver what a scheme returned, or
delivers it twice. The law is always the same: what the optimizer saw plus what is kept
is the sum of all gradients."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.distributed as dist
import thinwire
from torch.distributed.algorithms.join import Join
from workers import loss_of, net, run, same_everywhere, sgd, train, weights, wrap

RESIDUAL = (
    "onebit",
    "powersgd",
    "dgc:density=0.05,momentum=0,values=f32",
    "topk:density=0.05,values=f32",
    "int8:memory=residual",
)


class Branches(torch.nn.Module):
    """Uses one of two branches, alternately."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.common, self.left, self.right = (
            torch.nn.Linear(20, 16),
            torch.nn.Linear(16, 10),
            torch.nn.Linear(16, 10),
        )
        self.turn = 0

    def forward(self, x):
        return (self.left if self.turn % 2 == 0 else self.right)(torch.relu(self.common(x)))


def gradients(model):
    return {
        name: torch.zeros(p.shape) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


def attached(form, ddp, model, optimizer, scheme):
    if form == "plain":
        handle = thinwire.HookState(scheme, model=model, optimizer=optimizer)
        ddp.register_comm_hook(handle, thinwire.hook)
        return handle
    return thinwire.attach(ddp, optimizer, scheme=scheme)


def conserves(handle, model, seen, given, world, where):
    """seen: what the optimizer got, the same on all ranks; given: this rank's gradients."""
    entries = handle.state_dict()["entries"]
    for name, parameter in model.named_parameters():
        kept = entries.get(name + "/v", torch.zeros(parameter.numel())).clone()
        total = given[name].flatten().clone()
        dist.all_reduce(kept)
        dist.all_reduce(total)
        torch.testing.assert_close(
            world * seen[name].flatten() + kept,
            total,
            rtol=1e-4,
            atol=1e-5,
            msg=lambda text: f"{where}, {name}: {text}",
        )


def alternates(rank, world, form, turns, to_none, options):
    """Weights stay constant, so that a twin without DDP computes each rank's gradients."""
    for scheme in RESIDUAL:
        model, alone = Branches(), Branches()
        ddp, optimizer = (
            wrap(model, find_unused_parameters=True, **options),
            sgd(model, momentum=0, lr=0.0),
        )
        handle = attached(form, ddp, model, optimizer, scheme)
        seen, given = gradients(alone), gradients(alone)
        for step in range(8):
            model.turn = alone.turn = turns[rank][step % len(turns[rank])]
            optimizer.zero_grad(set_to_none=to_none)
            loss_of(ddp, rank, step).backward()
            alone.zero_grad()
            loss_of(alone, rank, step).backward()
            for name, gradient in gradients(model).items():
                seen[name] += gradient
            for name, gradient in gradients(alone).items():
                given[name] += gradient
            optimizer.step()
        conserves(
            handle, model, seen, given, world, f"{scheme} {form} {options} set_to_none={to_none}"
        )


BOTH, ONE = ([0, 1], [0, 1]), ([0, 1, 0, 0], [0, 1, 1, 1])


@pytest.mark.parametrize("form", ["attach", "plain"])
@pytest.mark.parametrize("turns", [BOTH, ONE], ids=["on_no_rank", "on_one_rank"])
def test_nothing_is_lost_for_a_parameter_that_is_not_used(form, turns):
    run(2, alternates, form, turns, True, {})


@pytest.mark.parametrize("to_none", [True, False])
def test_nothing_is_lost_with_views_of_buckets(to_none):
    run(2, alternates, "attach", BOTH, to_none, {"gradient_as_bucket_view": True})


def test_nothing_is_lost_with_a_static_graph():
    run(2, alternates, "attach", ([0], [0]), True, {"static_graph": True})


def test_nothing_is_lost_with_gradients_of_zeros():
    run(2, alternates, "attach", BOTH, False, {})


def unused_while_accumulating(rank, world):
    """Two backwards without zero_grad(): the branch that is not used keeps the average of the
    first."""
    for scheme in RESIDUAL:
        model, alone = Branches(), Branches()
        ddp, optimizer = wrap(model, find_unused_parameters=True), sgd(model, momentum=0, lr=0.0)
        handle = thinwire.attach(ddp, optimizer, scheme=scheme)
        seen, given = gradients(alone), gradients(alone)
        for step in range(6):
            optimizer.zero_grad()
            for turn in (0, 1):
                model.turn = alone.turn = turn
                loss_of(ddp, rank, 2 * step + turn).backward()
                alone.zero_grad()
                loss_of(alone, rank, 2 * step + turn).backward()
                for name, gradient in gradients(alone).items():
                    given[name] += gradient
            for name, gradient in gradients(model).items():
                seen[name] += gradient
            optimizer.step()
        conserves(handle, model, seen, given, world, scheme)


def test_nothing_is_lost_or_doubled_for_an_unused_parameter_in_an_accumulated_gradient():
    run(2, unused_while_accumulating)


def owed_to_unused(rank, world):
    """A residual that a switch to `dense` owes to the next gradient waits for one that is
    delivered."""
    model, alone = Branches(), Branches()
    ddp, optimizer = wrap(model, find_unused_parameters=True), sgd(model, momentum=0, lr=0.0)
    handle = thinwire.attach(ddp, optimizer, scheme="topk:density=0.05,values=f32")
    seen, given = gradients(alone), gradients(alone)
    for step in range(6):
        if step == 3:  # after a step with the left branch, before one with the right
            handle.set_scheme("dense")
        model.turn = alone.turn = step
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        alone.zero_grad()
        loss_of(alone, rank, step).backward()
        for name, gradient in gradients(model).items():
            seen[name] += gradient
        for name, gradient in gradients(alone).items():
            given[name] += gradient
    conserves(handle, model, seen, given, world, "dense after topk")


def test_what_is_owed_waits_for_a_gradient_that_is_used():
    run(2, owed_to_unused)


# -- two backwards per step


def accumulate(ddp, optimizer, rank, step, clear):
    clear()
    loss_of(ddp, rank, 2 * step).backward()
    loss_of(ddp, rank, 2 * step + 1).backward()
    optimizer.step()


def twice(rank, world):
    for scheme in ("dgc:density=0.05", "signum", "int8:memory=momentum", "csc:density=0.1"):
        for form in ("attach", "plain"):
            model = net()
            ddp, optimizer = wrap(model), sgd(model)
            attached(form, ddp, model, optimizer, scheme)
            with pytest.raises(RuntimeError, match="no_sync") as caught:
                for step in range(3):
                    accumulate(ddp, optimizer, rank, step, optimizer.zero_grad)
            assert "weight" in str(caught.value) or "bias" in str(caught.value), caught.value
    model = net()  # a step without zero_grad() is the same mistake
    ddp, optimizer = wrap(model), sgd(model)
    thinwire.attach(ddp, optimizer, scheme="dgc:density=0.05")
    with pytest.raises(RuntimeError, match="zero_grad"):
        for step in range(3):
            loss_of(ddp, rank, step).backward()
            optimizer.step()


def test_momentum_over_averages_is_refused_at_the_second_backward():
    run(2, twice)


def twice_without_momentum(rank, world):
    for scheme in ("dense", *RESIDUAL):
        model, alone, plain = net(), net(), net()
        ddp, optimizer = wrap(model), sgd(model, momentum=0, lr=0.0)
        plain_ddp, plain_optimizer = wrap(plain), sgd(plain, momentum=0, lr=0.0)
        handle = thinwire.attach(ddp, optimizer, scheme=scheme)
        seen, given = gradients(alone), gradients(alone)
        for step in range(5):
            accumulate(ddp, optimizer, rank, step, optimizer.zero_grad)
            accumulate(plain_ddp, plain_optimizer, rank, step, plain_optimizer.zero_grad)
            alone.zero_grad()
            (loss_of(alone, rank, 2 * step) + loss_of(alone, rank, 2 * step + 1)).backward()
            for name, gradient in gradients(model).items():
                seen[name] += gradient
                assert scheme != "dense" or torch.equal(gradient, gradients(plain)[name])
            for name, gradient in gradients(alone).items():
                given[name] += gradient
        conserves(handle, model, seen, given, world, scheme)


def test_two_backwards_per_step_without_momentum_are_right():
    run(2, twice_without_momentum)


def harmless(rank, world):
    """What looks like a second backward but is not: dgc must not reject it."""

    def fresh(**options):
        model = net()
        ddp, optimizer = wrap(model, **options), sgd(model)
        return model, ddp, optimizer, thinwire.attach(ddp, optimizer, scheme="dgc:density=0.5")

    for views in (False, True):
        for to_none in (True, False):
            model, ddp, optimizer, handle = fresh(gradient_as_bucket_view=views)
            for step in range(4):
                optimizer.zero_grad(set_to_none=to_none)
                loss_of(ddp, rank, step).backward()
                if step != 1:  # a dropped step: its gradients are cleared
                    optimizer.step()
            for step in range(4):
                with ddp.no_sync():
                    loss = loss_of(ddp, rank, step)
                    optimizer.zero_grad(set_to_none=to_none)  # between forward and backward
                    loss.backward()
                loss_of(ddp, rank, step + 9).backward()
                optimizer.step()
            for step in range(3):  # through this model into another one, as a GAN's generator does
                optimizer.zero_grad(set_to_none=to_none)
                loss_of(ddp, rank, step).backward()
                optimizer.step()
                with ddp.no_sync():
                    loss_of(ddp, rank, step + 50).backward()
            assert same_everywhere(weights(model))
    model, ddp, optimizer, handle = fresh()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    handle.detach()
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.5", scaler=scaler)
    for step in range(6):
        optimizer.zero_grad()
        scaler.scale(loss_of(ddp, rank, step) * (1e38 if step == 3 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert handle.report().skipped == 1
    model = net()  # no optimizer given: the same signal serves
    ddp, optimizer = wrap(model), sgd(model, momentum=0)
    thinwire.attach(ddp, None, scheme="dgc:density=0.5,momentum=0.9")
    train(ddp, optimizer, rank, range(4))
    with pytest.raises(RuntimeError, match="no_sync"):
        accumulate(ddp, optimizer, rank, 9, optimizer.zero_grad)


def test_what_only_looks_like_a_second_backward_is_taken():
    run(2, harmless)


def joins(rank, world):
    """Ranks with fewer batches shadow the others, which look for unused parameters meanwhile."""
    for scheme in ("dense", "onebit", "dgc:density=0.1,momentum=0"):
        model = Branches()
        ddp, optimizer = wrap(model, find_unused_parameters=True), sgd(model, momentum=0)
        handle = thinwire.attach(ddp, optimizer, scheme=scheme)
        with Join([ddp]):
            for step in range(4 + 3 * rank):
                model.turn = step
                train(ddp, optimizer, rank, [step])
        assert handle.state_dict()["steps"] == 7 and same_everywhere(weights(model)), scheme


def test_join_with_unused_parameters():
    run(2, joins)


class Angry(torch.autograd.Function):
    """Ends backward at a tensor, like Ctrl-C or a lack of memory there."""

    @staticmethod
    def forward(ctx, x, angry):
        ctx.angry = angry
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.angry:
            raise KeyboardInterrupt
        return gradient, None


def interrupted(rank, world, scheme, at):
    """Some buckets have come, and the rest never will. Asking the handle says so, and does not end
    the process, also where no bucket has left yet (a first backward)."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1000
    model = net()
    head, tail = model[:2], model[2:]
    ddp, optimizer = wrap(model, find_unused_parameters=True), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme=scheme)
    for step in range(at + 1):
        model.forward = lambda x, step=step: tail(Angry.apply(head(x), step == at))
        if step < at:
            train(ddp, optimizer, rank, [step])
    optimizer.zero_grad()
    with pytest.raises(KeyboardInterrupt):
        loss_of(ddp, rank, at).backward()
    named = "'0.weight'|'0.bias'" if at else ""
    with pytest.raises(thinwire.Error, match=f"ended before bucket.*({named}).*exception"):
        handle.report()


def begun_at_odds(rank, world):
    """The first backward cannot set up the exchange. Asking the handle later says so, and does not
    end the process."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme=["topk", "onebit"][rank])
    with pytest.raises(RuntimeError, match="rank"):
        loss_of(ddp, rank, 0).backward()
    with pytest.raises(thinwire.Error, match="could not be set up in the last backward"):
        handle.report()


def test_a_first_backward_of_ranks_at_odds():
    run(2, begun_at_odds)


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("scheme", ["dense", "topk"])
def test_a_backward_that_was_interrupted(scheme, at):
    run(2, interrupted, scheme, at)
