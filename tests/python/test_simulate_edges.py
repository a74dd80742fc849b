"""test_simulate_edges: what a loop can do wrong with virtual workers is right or an error."""

# SPDX-License-Identifier: Apache-2.0
import gc
import weakref

import pytest
import torch
import thinwire
from test_simulate import expected_after, fresh, go, one_thread  # noqa: F401  (a fixture)
from torch.optim.optimizer import register_optimizer_step_post_hook
from workers import loss_of, net, sgd, weights


def test_every_worker_needs_a_backward():
    model, optimizer, sim = fresh(world=3)
    go(sim, model, optimizer, [0])
    before = weights(model)
    optimizer.zero_grad()
    for rank in (0, 2):
        with sim.worker(rank):
            loss_of(model, rank, 1).backward()
    with sim.worker(1):
        loss_of(model, 1, 1)
    with pytest.raises(RuntimeError, match="worker 1 of 3 had no backward"):
        optimizer.step()
    assert torch.equal(weights(model), before) and sim.report().steps == 1
    with sim.worker(1):
        loss_of(model, 1, 1).backward()
    optimizer.step()
    assert torch.equal(weights(model), expected_after(range(2), world=3))


def test_what_happens_outside_of_shares():
    model, optimizer, sim = fresh()
    with pytest.raises(RuntimeError, match="before any worker had a share"):
        model[0].weight.grad = torch.ones_like(model[0].weight)
        optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="outside of any worker's share"):
        loss_of(model, 0, 0).backward()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="no worker has had a share"):
        sim.exchange()
    with sim.worker(0), pytest.raises(RuntimeError, match="share of worker 0 has not ended"):
        optimizer.step()
    optimizer.zero_grad()
    with sim.worker(0), pytest.raises(RuntimeError, match="share of worker 0 has not ended"):
        with sim.worker(1):
            pass
    for number in (-1, 2):
        with pytest.raises(ValueError, match="2 workers, numbered from 0"), sim.worker(number):
            pass
    go(sim, model, optimizer, range(2))
    assert torch.equal(weights(model), expected_after(range(2)))
    with pytest.raises(RuntimeError, match="without a new exchange"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="call zero_grad.. before the first share"):
        with sim.worker(0):
            pass


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_drops_a_step(to_none):
    model, optimizer, sim = fresh(of_sgd={"weight_decay": 0.01})
    go(sim, model, optimizer, range(2))
    optimizer.zero_grad(set_to_none=to_none)
    for rank in range(2):
        with sim.worker(rank):
            loss_of(model, rank, 7).backward()
    optimizer.zero_grad(set_to_none=to_none)
    with pytest.raises(RuntimeError, match="zero_grad.. has dropped"):
        optimizer.step()
    with sim.worker(0):
        loss_of(model, 0, 2).backward()
    with pytest.raises(RuntimeError, match="worker 1 of 2 had no backward.*zero_grad"):
        optimizer.step()
    go(sim, model, optimizer, range(2, 4))
    assert torch.equal(weights(model), expected_after(range(4), of_sgd={"weight_decay": 0.01}))


def test_zero_grad_inside_a_share_is_that_workers():
    model, optimizer, sim = fresh()
    for step in range(3):
        for rank in range(2):
            with sim.worker(rank):
                loss_of(model, rank, 99).backward()
                optimizer.zero_grad(set_to_none=step == 1)
                loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(weights(model), expected_after(range(3)))


def test_an_exception_drops_the_step():
    model, optimizer, sim = fresh()
    model.register_buffer("count", torch.zeros(()))
    go(sim, model, optimizer, [0])
    optimizer.zero_grad()
    with pytest.raises(KeyError):
        for rank, _ in sim.shares("a", "b"):
            model.count += 1
            loss_of(model, rank, 5).backward()
            if rank == 1:
                raise KeyError("mine")
    assert model.count == 1, "buffers are worker 0's"
    with pytest.raises(RuntimeError, match="share of worker 1 was ended by break, or by an exc"):
        optimizer.step()
    with pytest.raises(KeyError), sim.worker(0):
        loss_of(model, 0, 5).backward()
        raise KeyError("mine")
    with pytest.raises(RuntimeError, match="share of worker 0 was ended by KeyError"):
        optimizer.step()
    for rank, _ in sim.shares("a", "b"):
        loss_of(model, rank, 5).backward()
        break
    with pytest.raises(RuntimeError, match="share of worker 0 was ended by break"):
        optimizer.step()
    go(sim, model, optimizer, [1])
    assert torch.equal(weights(model), expected_after(range(2)))


def test_clipping_needs_the_averages():
    model, optimizer, sim = fresh("topk:density=0.1")
    for rank in range(2):
        with sim.worker(rank):
            loss_of(model, rank, 0).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    with pytest.raises(RuntimeError, match="call sim.exchange.. after the last share"):
        optimizer.step()
    model, optimizer, sim = fresh("topk:density=0.1")
    scaler = torch.amp.GradScaler("cpu")
    for rank in range(2):
        with sim.worker(rank):
            scaler.scale(loss_of(model, rank, 0)).backward()
    with pytest.raises(RuntimeError, match="simulate.. was given none"):
        scaler.step(optimizer)


def half_a_step(sim, model, step):
    for rank in range(sim.workers):
        with sim.worker(rank):
            loss_of(model, rank, step).backward()


@pytest.mark.parametrize("of_type", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("change", [lambda grad: grad.data.clamp_(-1e-3, 1e-3),
                                    lambda grad: grad.data.neg_(),
                                    lambda grad: grad.data.view(-1)[-1:].add_(1)])
def test_a_change_by_way_of_data_is_found(change, of_type):
    model = torch.nn.Linear(3, 3, dtype=of_type)  # the last bytes are no whole word
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sim = thinwire.simulate(model, optimizer, 2, "dense")
    for ends in (optimizer.step, lambda: sim.worker(0).__enter__()):
        for rank in range(2):
            with sim.worker(rank):
                model(torch.arange(1.0, 4.0).to(of_type)).sum().backward()
        change(model.bias.grad)
        with pytest.raises(RuntimeError, match="call sim.exchange.. after the last share"):
            ends()
        optimizer.zero_grad()
    for rank in range(2):
        with sim.worker(rank):
            (model(torch.ones(3, dtype=of_type)).sum() * float("nan")).backward()
    optimizer.step()  # NaN is no change
    assert sim.report().skipped == 1


def test_zeros_by_way_of_data_drop_a_step():
    model, optimizer, sim = fresh()
    half_a_step(sim, model, 7)
    for parameter in model.parameters():
        parameter.grad.data.zero_()
    go(sim, model, optimizer, range(2))
    assert torch.equal(weights(model), expected_after(range(2)))


def test_an_optimizer_that_simulate_does_not_know():
    model, optimizer, sim = fresh()
    go(sim, model, optimizer, [0])
    other = torch.optim.Adam(model.parameters())
    optimizer.zero_grad()
    half_a_step(sim, model, 1)
    with pytest.raises(RuntimeError, match="a Adam that simulate.. was not given has stepped"):
        other.step()
    with pytest.raises(RuntimeError, match="another Adam stepped before the exchange"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="was not given has stepped"), sim.worker(0):
        loss_of(model, 0, 1).backward()
        other.step()
    with pytest.raises(RuntimeError, match="share of worker 0 was ended by RuntimeError"):
        optimizer.step()
    unrelated = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    half_a_step(sim, model, 1)
    unrelated.step()
    optimizer.step()
    optimizer.zero_grad()
    sim.detach()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    other.step()


def test_an_optimizer_that_wraps_ours_is_known():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inside):
            super().__init__(inside.param_groups, {})
            self.inside = inside

        def step(self):
            self.inside.step()

    model, optimizer, sim = fresh()
    wrapper = Wrapper(optimizer)
    for step in range(3):
        wrapper.zero_grad()
        half_a_step(sim, model, step)
        wrapper.step()
    assert torch.equal(weights(model), expected_after(range(3)))


def test_parameters_that_nobody_averages_are_refused():
    model = net()
    whole = torch.nn.ModuleList([model, torch.nn.Linear(10, 2)])
    optimizer = sgd(whole)
    with pytest.raises(ValueError, match=r"shape \(2, 10\) that is not in the model, so the grad"):
        thinwire.simulate(model, optimizer, 2, "topk")
    both = [sgd(model), sgd(whole[1])]
    with pytest.raises(ValueError, match="give the module that holds all"):
        thinwire.simulate(model, both, 2, "topk")
    thinwire.simulate(whole, both, 2, "topk").detach()
    one = thinwire.simulate(model, both[0], 2, "topk")  # a GAN
    two = thinwire.simulate(whole[1], both[1], 2, "topk")
    one.detach()
    two.detach()
    whole[1].requires_grad_(False)
    thinwire.simulate(model, optimizer, 2, "topk")


def test_two_simulations_of_one_optimizer():
    """An optimizer may have what another simulation averages."""
    first, second = net(), torch.nn.Linear(10, 2)
    one = thinwire.simulate(first, sgd(first), 2, "dense")
    both = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
    thinwire.simulate(second, both, 2, "dense")
    one.detach()


class Mine(BaseException):
    pass


@pytest.mark.parametrize("scheme", ["dense", "dgc:density=0.1", "topk:density=0.1"])
def test_an_exception_in_the_exchange_drops_the_step(scheme):
    model, optimizer, sim = fresh(scheme)
    raised = []

    def callback(report):
        if report.step == 2 and not raised:
            raised.append(report)
            raise Mine

    sim.on_step(callback)
    go(sim, model, optimizer, [0])
    before = weights(model)
    optimizer.zero_grad()
    half_a_step(sim, model, 1)
    with pytest.raises(Mine):
        optimizer.step()
    assert torch.equal(weights(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="the exchange was ended by Mine, which dropped"):
        optimizer.step()
    go(sim, model, optimizer, [2])
    assert not torch.equal(weights(model), before) and weights(model).isfinite().all()
    sim.state_dict()


def test_two_simulations_share_a_scaler():
    for first in (0, 1):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        parts = [fresh("topk:density=0.1", scaler=scaler) for _ in range(2)]
        parts[first][2].detach()
        model, optimizer, sim = parts[1 - first]
        for rank in range(2):
            with sim.worker(rank):
                scaler.scale(loss_of(model, rank, 0)).backward()
        scaler.unscale_(optimizer)  # makes the exchange
        assert sim.report().steps == 1
        scaler.step(optimizer)
        scaler.update()
        sim.detach()
        optimizer.zero_grad()
        for model, optimizer, _ in parts:
            scaler.scale(loss_of(model, 0, 0)).backward()
            scaler.step(optimizer)
        assert first == 0 or "_unscale_grads_" not in scaler.__dict__


def test_a_lost_simulation_is_none():
    model = net()

    def ends(how):
        optimizer = sgd(model)
        sim = thinwire.simulate(model, optimizer, 2, "dgc:density=0.1")
        optimizer.zero_grad()
        with sim.worker(0):
            loss_of(model, 0, 0).backward()
        how()
        return weakref.ref(sim)

    with pytest.raises(KeyError) as error:
        ends(lambda: {}["mine"])
    del error
    lost = ends(lambda: None)  # does not find the first one either
    optimizer = sgd(model)
    sim = thinwire.simulate(model, optimizer, 2, "topk")
    assert lost() is None
    go(sim, model, optimizer, range(2))
    with pytest.raises(RuntimeError, match="simulated already.*lives as long as its optimizer"):
        thinwire.simulate(model, sgd(model), 2)
    with pytest.raises(RuntimeError, match="attached already"):
        thinwire.attach(model, optimizer, delay=1)


def test_parameters_that_a_worker_does_not_use():
    model, optimizer, sim = fresh()
    with sim.worker(0):
        loss_of(model, 0, 0).backward()
    with sim.worker(1):
        model[2](torch.randn(4, 32)).sum().backward()
    with pytest.raises(RuntimeError, match="'0.weight' got no gradient from worker 1"):
        optimizer.step()


def test_a_model_that_changes():
    model, optimizer, _ = fresh()
    model, optimizer = net(), None
    model[2].weight.requires_grad_(False)
    optimizer = sgd(model)
    sim = thinwire.simulate(model, optimizer, 2, "dgc")
    go(sim, model, optimizer, [0])
    model[2].weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match="'2.weight' requires gradients, and did not"):
        go(sim, model, optimizer, [1])
    model[2].weight.requires_grad_(False)
    model[0] = torch.nn.Linear(20, 32)
    with pytest.raises(RuntimeError, match="'0.weight' requires gradients, and did not"):
        go(sim, model, optimizer, [1])
    model[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match="'0.weight' was frozen, removed or replaced"):
        go(sim, model, optimizer, [1])


def test_refused_setups():
    model = net()
    optimizer = sgd(model)
    for error, text, call in [
        (ValueError, "workers=0", lambda: thinwire.simulate(model, optimizer, 0)),
        (ValueError, "delayed averaging", lambda: thinwire.simulate(model, optimizer, 2, delay=3)),
        (RuntimeError, "desnity", lambda: thinwire.simulate(model, optimizer, 2, desnity=3)),
        (RuntimeError, "100mbit", lambda: thinwire.simulate(model, optimizer, 2, link="fast")),
        (RuntimeError, "split", lambda: thinwire.simulate(model, optimizer, 2, "powersgd",
                                                          exchange="split")),
        (ValueError, "torch.optim.SGD", lambda: thinwire.simulate(
            model, torch.optim.Adam(model.parameters()), 2)),
        (ValueError, "none of this model's", lambda: thinwire.simulate(net(), optimizer, 2)),
        (ValueError, "none of the optimizers", lambda: thinwire.simulate(
            model, torch.optim.SGD(model[0].parameters(), 0.1), 2)),
        (ValueError, "on meta; move the model to the CPU or to CUDA", lambda: thinwire.simulate(
            net().to("meta"), optimizer, 2)),
        (ValueError, "float64", lambda: thinwire.simulate(net().double(), optimizer, 2)),
        (TypeError, "Optimizer", lambda: thinwire.simulate(model, None, 2)),
        (ValueError, "several processes", lambda: thinwire.simulate(
            model, type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})(model.parameters()), 2)),
    ]:
        with pytest.raises(error, match=text):
            call()
    sim = thinwire.simulate(model, optimizer, 2, "onebit")  # nothing of the refused ones is left
    go(sim, model, optimizer, range(2))
    with pytest.raises(RuntimeError, match="attached or simulated already"):
        thinwire.simulate(model, sgd(model), 2)


def test_between_shares_and_step_there_is_no_state():
    model, optimizer, sim = fresh()
    with sim.worker(0):
        loss_of(model, 0, 0).backward()
    for call in (sim.state_dict, sim.detach, lambda: sim.set_scheme("topk"),
                 lambda: sim.load_state_dict({})):
        with pytest.raises(RuntimeError, match="wait for the exchange.*or after zero_grad"):
            call()
    optimizer.zero_grad()
    sim.detach()


def test_detach_ends_it():
    exact = "dgc:density=1,mask=off,values=f32"
    plain = expected_after(range(6), scheme="dense", of_sgd={"weight_decay": 0.05})
    model, optimizer, sim = fresh(exact, of_sgd={"weight_decay": 0.05})
    go(sim, model, optimizer, range(3))
    sim.detach()
    with pytest.raises(RuntimeError, match="ended by detach"):
        sim.shares("a", "b")
    again = thinwire.simulate(model, optimizer, 2, "dense")
    go(again, model, optimizer, range(3, 6))
    torch.testing.assert_close(weights(model), plain, rtol=1e-4, atol=1e-6)
    again.detach()
    optimizer.zero_grad()
    loss_of(model, 0, 0).backward()  # an ordinary model again
    optimizer.step()


@pytest.mark.parametrize("buffer", [torch.eye(6).to_sparse(), torch.eye(6).to_sparse_csr(),
                                    torch.arange(6).expand(3, 6)], ids=["coo", "csr", "expanded"])
def test_buffers_that_torch_cannot_compare_or_fill(buffer):
    model, optimizer, sim = fresh()
    model.register_buffer("mine", buffer)
    go(sim, model, optimizer, range(2))
    assert model.mine is buffer
    assert torch.equal(weights(model), expected_after(range(2)))


def test_garbage_is_collected_while_an_optimizer_steps():
    """Torch went through its hooks when one of them was removed."""
    fresh()
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    hook = register_optimizer_step_post_hook(lambda *_: gc.collect() and None)
    try:
        other.step()
    finally:
        hook.remove()
