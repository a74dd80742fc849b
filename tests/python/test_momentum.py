"""test_momentum: wherever momentum is held, the training is the same: through attach, changes of
scheme, detach, checkpoints and errors."""

# SPDX-License-Identifier: Apache-2.0
import copy
import time

import pytest
import torch
import torch.distributed as dist
import thinwire
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from workers import loss_of, net, run, sgd, train, weights, wrap

EXACT = "dgc:density=1,mask=off,values=f32"  # SGD with momentum, up to rounding


def conv_net(channels_last=False):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 6, 3),
        torch.nn.Flatten(),
        torch.nn.Linear(6 * 4 * 4, 10),
    )
    return model.to(memory_format=torch.channels_last) if channels_last else model


def conv_loss(ddp, rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x, y = torch.randn(4, 3, 8, 8, generator=generator), torch.randint(
        0, 10, (4,), generator=generator
    )
    return torch.nn.functional.cross_entropy(ddp(x), y)


def go(ddp, optimizer, rank, steps):
    for step in steps:
        optimizer.zero_grad()
        conv_loss(ddp, rank, step).backward()
        optimizer.step()


def close(got, wanted, what, most=1e-5):
    error = float((got - wanted).abs().max() / wanted.abs().max())
    assert error < most, f"{what}: {error:.1e} off"


def gathered(model, optimizer):
    return torch.cat(
        [
            optimizer.state[parameter]["momentum_buffer"].flatten()
            for parameter in model.parameters()
        ]
    )


FORMS = {
    "plain": {},
    "nesterov": {"nesterov": True},
    "decay": {"weight_decay": 0.05},
    "nesterov_decay": {"nesterov": True, "weight_decay": 0.05},
    "maximize": {"maximize": True, "lr": 0.001},
    "maximize_decay": {"maximize": True, "lr": 0.001, "weight_decay": 0.05, "nesterov": True},
    "foreach": {"foreach": True, "weight_decay": 0.05},
    "fused": {"fused": True, "weight_decay": 0.05},
}


def hands_over(rank, world, form, channels_last):
    wanted, momenta = [], []
    for attached in (False, True):
        model = conv_net(channels_last)
        ddp, optimizer = wrap(model), sgd(model, **{"lr": 0.05, **FORMS[form]})
        go(ddp, optimizer, rank, range(4))
        handle = thinwire.attach(ddp, optimizer, scheme=EXACT) if attached else None
        for part, change in enumerate(
            (
                lambda: None,
                lambda: handle.set_scheme("dense"),
                lambda: handle.set_scheme(EXACT),
                lambda: handle.detach(),
            )
        ):
            if attached:
                change()
            go(ddp, optimizer, rank, range(4 + 3 * part, 7 + 3 * part))
            if attached:
                close(weights(model), wanted[part], f"part {part}")
            else:
                wanted.append(weights(model))
        momenta.append(gathered(model, optimizer))
    close(momenta[1], momenta[0], "momentum_buffer", 1e-4)


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("form", FORMS)
def test_hand_over_is_exact(form, channels_last):
    run(2, hands_over, form, channels_last)


def saves(rank, world, scheme, form, channels_last, steps):
    model = conv_net(channels_last)
    ddp, optimizer = wrap(model), sgd(model, **{"lr": 0.05, **FORMS[form]})
    handle = thinwire.attach(ddp, optimizer, scheme=scheme)
    go(ddp, optimizer, rank, range(steps))
    return model.state_dict(), optimizer.state_dict(), handle.state_dict(), weights(model)


ORDERS = {
    "optimizer_attach_handle": "oal",
    "attach_optimizer_handle": "aol",
    "attach_handle_optimizer": "alo",
}


def loads(rank, world, scheme, form, channels_last, order, saved, steps):
    model = conv_net(channels_last)
    ddp, optimizer = wrap(model), sgd(model, **{"lr": 0.05, **FORMS[form]})
    model_state, optimizer_state, shards = saved
    model.load_state_dict(model_state)
    for action in order:
        if action == "o":
            optimizer.load_state_dict(optimizer_state)
        elif action == "a":
            handle = thinwire.attach(ddp, optimizer, scheme=scheme)
        else:
            handle.load_state_dict(shards[rank])
    go(ddp, optimizer, rank, steps)
    return weights(model)


def resumed(before, after, order, form="nesterov_decay", layouts=(False, False)):
    states = run(2, saves, before, form, layouts[0], 5)
    wanted = run(2, saves, "dense", form, False, 9)[0][3]
    got = run(
        2,
        loads,
        after,
        form,
        layouts[1],
        ORDERS[order],
        (states[0][0], states[0][1], [state[2] for state in states]),
        range(5, 9),
    )
    close(got[0], wanted, f"{before} to {after}, {order}")


@pytest.mark.parametrize(
    "layouts",
    [(True, False), (False, True), (True, True)],
    ids=["from_channels_last", "to_channels_last", "both"],
)
def test_checkpoints_do_not_depend_on_the_memory_format(layouts):
    resumed(EXACT, EXACT, "optimizer_attach_handle", layouts=layouts)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "before,after",
    [(EXACT, EXACT), (EXACT, "dense"), ("dense", EXACT)],
    ids=["same", "to_dense", "from_dense"],
)
def test_any_order_of_loading_gives_the_same_training(before, after, order):
    resumed(before, after, order)


def half_loaded(rank, world):
    model_state, optimizer_state, _, _ = saves(rank, world, EXACT, "plain", False, 3)
    for scheme in (EXACT, "powersgd"):
        model = conv_net()
        ddp, optimizer = wrap(model), sgd(model, lr=0.05)
        optimizer.load_state_dict(optimizer_state)
        thinwire.attach(ddp, optimizer, scheme=scheme)
        with pytest.raises(RuntimeError, match="load_state_dict"):
            go(ddp, optimizer, rank, range(1))


def test_an_optimizer_without_its_handles_state_is_refused():
    run(2, half_loaded)


def refusals(rank, world):
    """A rejected call has changed nothing."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model, weight_decay=0.01)
    train(ddp, optimizer, rank, range(3))
    with pytest.raises(Exception, match="split"):
        thinwire.attach(ddp, optimizer, scheme="dense", exchange="split")
    hooked = wrap(net())
    own = sgd(hooked)
    train(hooked, own, rank, range(2))
    hooked.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(Exception, match="takes one only"):
        thinwire.attach(hooked, own, scheme="dgc")
    assert all("momentum_buffer" in own.state[parameter] for parameter in hooked.parameters())
    assert own.param_groups[0]["momentum"] == 0.9
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.1", exchange="split")
    for wrong in ("dense", "powersgd", "gdc", "topk:density=3"):
        state = handle.state_dict()["entries"]
        with pytest.raises(Exception):
            handle.set_scheme(wrong)
        assert handle.scheme.startswith("dgc") and not optimizer.state[model[0].weight]
        after = handle.state_dict()["entries"]
        assert all(
            torch.equal(after[name], value)
            for name, value in state.items()
            if torch.is_tensor(value)
        )
    train(ddp, optimizer, rank, range(3, 5))


def slow_to_connect(rank, world):
    """Rank 1 has the reason only if it waits for rank 0's connections."""
    ddp = wrap(net())
    store, make = dist.distributed_c10d._get_default_store(), dist.ProcessGroupGloo

    def slow(*args):
        made = make(*args)
        time.sleep(0.3)
        store.set("rank 0 has connected", "")
        return made

    if rank == 0:
        dist.ProcessGroupGloo = slow
    with pytest.raises(Exception, match="split"):
        thinwire.attach(ddp, sgd(ddp), scheme="dense", exchange="split")
    dist.ProcessGroupGloo = make
    assert store.check(["rank 0 has connected"])


def test_a_refusal_waits_until_all_ranks_are_connected():
    run(2, slow_to_connect)


def goes_back(rank, world, what):
    """Model and optimizer go back to an earlier step, or the optimizer begins anew."""
    results = []
    for attached in (False, True):
        model = conv_net()
        ddp, optimizer = wrap(model), sgd(model, lr=0.05, weight_decay=0.05)
        fresh = copy.deepcopy(optimizer.state_dict())
        handle = thinwire.attach(ddp, optimizer, scheme=EXACT) if attached else None
        go(ddp, optimizer, rank, range(3))
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        own = copy.deepcopy(handle.state_dict()) if attached else None
        go(ddp, optimizer, rank, range(3, 6))
        if what == "anew":
            optimizer.load_state_dict(fresh)
        elif what == "now":
            optimizer.load_state_dict(optimizer.state_dict())
        else:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        if attached and what == "back":
            handle.load_state_dict(own)
        if attached and what == "half":
            with pytest.raises(RuntimeError, match="handle's state of the same step"):
                go(ddp, optimizer, rank, range(6, 7))
            return
        go(ddp, optimizer, rank, range(6, 9))
        results.append(weights(model))
    close(results[1], results[0], what)


@pytest.mark.parametrize("what", ["back", "half", "now", "anew"])
def test_an_optimizer_that_goes_back_takes_its_momentum_along(what):
    run(2, goes_back, what)


def test_refusals_change_nothing():
    run(2, refusals)


def raises(rank, world):
    """A failed step leaves groups and gradients unchanged, and can be repeated."""

    class Fails(torch.optim.SGD):
        fail, count = False, 0

        def step(self, closure=None):
            if self.fail:
                raise MemoryError("no room")
            self.count += 1
            return super().step(closure)

    results = []
    for failing in (False, True):
        model = net()
        ddp = wrap(model)
        optimizer = Fails(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.05)
        thinwire.attach(ddp, optimizer, scheme="dgc:density=0.1")
        for step in range(4):
            optimizer.zero_grad()
            loss_of(ddp, rank, step).backward()
            before = [parameter.grad.clone() for parameter in model.parameters()]
            if failing and step == 2:
                optimizer.fail = True
                with pytest.raises(MemoryError):
                    optimizer.step()
                optimizer.fail = False
                assert (
                    optimizer.param_groups[0]["weight_decay"] == 0.05
                    and optimizer.param_groups[0]["momentum"] == 0.9
                )
                assert all(
                    torch.equal(parameter.grad, grad)
                    for parameter, grad in zip(model.parameters(), before)
                )
            optimizer.step()
        assert optimizer.count == 4
        results.append(weights(model))
    close(results[1], results[0], "after a step that raised", 1e-6)


def test_a_step_that_raises_changes_nothing():
    run(2, raises)


def in_between(rank, world):
    """Momentum moves between steps, but not while gradients with or without it are about to be
    used."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    loss_of(ddp, rank, 0).backward()
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.1")
    with pytest.raises(RuntimeError, match="before backward"):
        optimizer.step()
    train(ddp, optimizer, rank, range(2))
    optimizer.zero_grad()
    loss_of(ddp, rank, 2).backward()
    handle.set_scheme("dense")
    with pytest.raises(RuntimeError, match="before backward"):
        optimizer.step()
    train(ddp, optimizer, rank, range(2, 4))
    optimizer.zero_grad()
    optimizer.step()


def test_momentum_does_not_go_over_inside_a_step():
    run(2, in_between)


def detaches_in_between(rank, world):
    """detach() between backward and step() would leave gradients that have the scheme's momentum
    to an optimizer that has it too."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme=EXACT)
    train(ddp, optimizer, rank, range(2))
    optimizer.zero_grad()
    loss_of(ddp, rank, 2).backward()
    with pytest.raises(RuntimeError, match="wait for step.*zero_grad"):
        handle.detach()
    optimizer.step()
    handle.detach()
    train(ddp, optimizer, rank, range(3, 5))
    other = net()
    plain, optimizer = wrap(other), sgd(other)
    train(plain, optimizer, rank, range(5))
    close(weights(model), weights(other), "after a refused detach()")


def test_detach_waits_for_the_step():
    run(2, detaches_in_between)


def gradients_stay(rank, world):
    for options in (
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "nesterov": True},
        {"weight_decay": 0.1, "fused": True},
    ):
        model = net()
        ddp, optimizer = wrap(model), sgd(model, **options)
        thinwire.attach(ddp, optimizer, scheme="dgc:density=0.1")
        for step in range(3):
            optimizer.zero_grad()
            loss_of(ddp, rank, step).backward()
            held = [(parameter.grad, parameter.grad.clone()) for parameter in model.parameters()]
            optimizer.step()
            for parameter, (grad, copy) in zip(model.parameters(), held):
                assert parameter.grad is grad and torch.equal(
                    grad, copy
                ), "step() has changed a gradient"


def test_step_leaves_gradients_alone():
    run(2, gradients_stay)


def there_and_back(rank, world):
    """dgc, signum, dgc: the velocity is the same afterwards. Also from SGD to signum and back."""
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    handle = thinwire.attach(ddp, optimizer, scheme="dgc:density=0.01")
    train(ddp, optimizer, rank, range(4))
    before = {
        name: value for name, value in handle.state_dict()["entries"].items() if name.endswith("/u")
    }
    assert before
    handle.set_scheme("signum")
    entries = handle.state_dict()["entries"]
    for name, value in before.items():
        torch.testing.assert_close(entries[name[:-1] + "m"], 0.1 * value, rtol=1e-5, atol=1e-8)
    handle.set_scheme("dgc:density=0.01")
    after = handle.state_dict()["entries"]
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-8)
    handle.set_scheme("dgc:density=0.01,nesterov=on")
    for name, value in before.items():
        torch.testing.assert_close(
            handle.state_dict()["entries"][name], 0.9 * value, rtol=1e-5, atol=1e-8
        )

    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    train(ddp, optimizer, rank, range(4))
    before = gathered(model, optimizer).clone()
    handle = thinwire.attach(ddp, optimizer, scheme="signum")
    handle.detach()
    torch.testing.assert_close(gathered(model, optimizer), before, rtol=1e-5, atol=1e-7)


def test_velocity_keeps_its_meaning_between_schemes():
    run(2, there_and_back)


def scaled(rank, world, fused, scale):
    model = net()
    ddp, optimizer = wrap(model), sgd(model, weight_decay=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
    handle = thinwire.attach(ddp, optimizer, scheme=EXACT, scaler=scaler)
    for step in range(10):
        optimizer.zero_grad()
        scaler.scale(loss_of(ddp, rank, step)).backward()
        scaler.step(optimizer)
        scaler.update()
    result = weights(model)
    scaler._scale.mul_(2)  # as update() may have just done
    handle.detach()
    return result, gathered(model, optimizer)


def test_decay_under_a_grad_scaler():
    wanted, momentum = run(2, scaled, False, 1.0)[0]
    for fused in (False, True):
        got, other = run(2, scaled, fused, 2.0**10)[0]
        close(got, wanted, f"fused={fused}")
        close(other, momentum, f"momentum, fused={fused}", 1e-4)


def unsent(rank, world):
    """Unsent values take effect once, whoever holds the momentum when they are sent: weights
    move as far as they would have."""

    def far(ddp, optimizer, model):
        before = weights(model)
        for step in range(150):
            optimizer.zero_grad()
            (0 * loss_of(ddp, rank, step)).backward()
            optimizer.step()
        return weights(model) - before

    def mean(handle, ending):
        entries = handle.state_dict()["entries"]
        values = torch.cat(
            [entries[name + ending] for name, _ in handle._model.module.named_parameters()]
        )
        dist.all_reduce(values)
        return values / world

    def begun(scheme):
        model = net()
        ddp, optimizer = wrap(model), sgd(model, lr=0.01)
        handle = thinwire.attach(ddp, optimizer, scheme=scheme)
        train(ddp, optimizer, rank, range(5))
        return model, ddp, optimizer, handle

    for change in ("dense", "topk:density=0.5,values=f32", None):
        model, ddp, optimizer, handle = begun("dgc:density=0.01,values=f32")
        wanted = -0.01 * (mean(handle, "/v") + mean(handle, "/u") * 0.9 / 0.1)
        handle.set_scheme(change) if change else handle.detach()
        close(far(ddp, optimizer, model), wanted, f"dgc to {change}", 1e-3)
    for form, tail in (("off", 0.9 / 0.1), ("on", 0.9 * 0.9 / 0.1)):
        model, ddp, optimizer, handle = begun("topk:density=0.01,values=f32")
        wanted = -0.01 * (mean(handle, "/v") / 0.1 + gathered(model, optimizer) * tail)
        optimizer.param_groups[0]["nesterov"] = form == "on"
        handle.set_scheme(EXACT)
        close(far(ddp, optimizer, model), wanted, f"topk to dgc, nesterov {form}", 1e-3)


def test_what_was_not_sent_counts_once():
    run(2, unsent)


def odd_strides(rank, world):
    """Dimensions of size 1 may have any stride; a transposed parameter has another order."""

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.token = torch.nn.Parameter(
                torch.randn(1, 1, 20).expand(1, 1, 20).as_strided((1, 1, 20), (7, 3, 1)).clone()
            )
            self.column = torch.nn.Parameter(torch.randn(20, 1).t())
            self.turned = torch.nn.Parameter(torch.randn(10, 20).t())

        def forward(self, x):
            return (x * self.token[0] + self.column) @ self.turned

    results = []
    for attached in (False, True):
        model = Odd()
        ddp, optimizer = wrap(model), sgd(model, weight_decay=0.05, lr=0.01)
        train(ddp, optimizer, rank, range(2))
        handle = thinwire.attach(ddp, optimizer, scheme=EXACT) if attached else None
        train(ddp, optimizer, rank, range(2, 6))
        if attached:
            handle.detach()
        train(ddp, optimizer, rank, range(6, 9))
        results.append(weights(model))
    close(results[1], results[0], "odd strides")


def test_odd_strides():
    run(2, odd_strides)


def plain_hooks(rank, world):
    """The same for a HookState, whose momentum moves before there is a handle. Without the
    model's names it is an error."""
    results = []
    for attached in (False, True):
        model = net()
        ddp, optimizer = wrap(model), sgd(model, weight_decay=0.01)
        train(ddp, optimizer, rank, range(3))
        if attached:
            ddp = wrap(model)
            state = thinwire.HookState(EXACT, model=model, optimizer=optimizer)
            state.set_scheme("dense")
            assert "momentum_buffer" in optimizer.state[model[0].weight]
            state.set_scheme(EXACT)
            ddp.register_comm_hook(state, thinwire.hook)
        train(ddp, optimizer, rank, range(3, 6))
        if attached:
            state.set_scheme("dense")
        train(ddp, optimizer, rank, range(6, 9))
        results.append(weights(model))
    close(results[1], results[0], "State")
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    train(ddp, optimizer, rank, range(1))
    with pytest.raises(ValueError, match="model="):
        thinwire.HookState("dgc", optimizer=optimizer)
    assert "momentum_buffer" in optimizer.state[model[0].weight]
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    state = thinwire.HookState("dgc", optimizer=optimizer)
    ddp.register_comm_hook(state, thinwire.hook)
    train(ddp, optimizer, rank, range(2))
    with pytest.raises(ValueError, match="model="):
        state.set_scheme("dense")
    assert state.scheme.startswith("dgc")


def test_states_of_plain_hooks():
    run(2, plain_hooks)


def loads_alone(rank, world, model_state, optimizer_state, whole):
    model = conv_net()
    model.load_state_dict(model_state)
    ddp, optimizer = wrap(model), sgd(model, lr=0.05)
    optimizer.load_state_dict(optimizer_state)
    handle = thinwire.attach(ddp, optimizer, scheme="dense")
    handle.load_state_dict(whole)
    shards = whole["shards"]
    for name, parameter in model.named_parameters():
        mean = sum(shard["entries"][name + "/u"] for shard in shards) / len(shards)
        buffer = optimizer.state[parameter]["momentum_buffer"]
        torch.testing.assert_close(buffer.flatten(), mean, rtol=1e-5, atol=1e-8)


def test_momentum_of_another_number_of_workers():
    states = run(2, saves, EXACT, "plain", False, 4)
    whole = thinwire.merge_states([state[2] for state in states])
    run(1, loads_alone, states[0][0], states[0][1], whole)
