"""test_schemes: every scheme of the registry through DDP: replicas stay identical, a step is
skipped on all ranks or on none, and a resumed training continues with the same bits."""

# SPDX-License-Identifier: Apache-2.0
import io

import pytest
import torch
import thinwire
from workers import net, run, same_everywhere, sgd, train, weights, wrap

SCHEMES = [scheme.name for scheme in thinwire.schemes()] + [
    "dgc:density=0.05,warmup=8",
    "qsgd:memory=momentum",
]
WHOLE, STOP = 12, 7


def rate_of(scheme):
    return {"lr": 0.002} if scheme == "signum" else {}


def fresh(scheme, **ddp_options):
    model = net()
    ddp, optimizer = wrap(model, **ddp_options), sgd(model, weight_decay=1e-3, **rate_of(scheme))
    return model, ddp, optimizer, thinwire.attach(ddp, optimizer, scheme=scheme, check_every=4)


def resumes(rank, world, schemes, **ddp_options):
    for scheme in schemes:
        model, ddp, optimizer, handle = fresh(scheme, **ddp_options)
        train(ddp, optimizer, rank, range(STOP), poison={(3, world - 1)})
        assert handle.report().skipped == 1, scheme
        file = io.BytesIO()
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "thinwire": handle.state_dict(),
            },
            file,
        )
        loss = train(ddp, optimizer, rank, range(STOP, WHOLE))
        expected = weights(model)
        assert torch.isfinite(expected).all() and loss < 4, (scheme, loss)
        assert same_everywhere(expected), scheme

        file.seek(0)
        checkpoint = torch.load(file, weights_only=True)
        model, ddp, optimizer, handle = fresh(scheme, **ddp_options)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        handle.load_state_dict(checkpoint["thinwire"])
        train(ddp, optimizer, rank, range(STOP, WHOLE))
        assert torch.equal(weights(model), expected), f"{scheme}: the resumed run has other bits"


@pytest.mark.parametrize("world", [2, 4])
def test_every_scheme_resumes_exactly(world):
    run(world, resumes, SCHEMES)


def resumes_with_options(rank, world):
    for options in (
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
    ):
        resumes(rank, world, ["dgc:density=0.05"], **options)


def test_exact_whenever_ddp_cuts_its_buckets():
    run(2, resumes_with_options)


def void_step(rank, world, schemes):
    for scheme in schemes:
        model, ddp, optimizer, handle = fresh(scheme)
        train(ddp, optimizer, rank, range(4))
        before, state = (
            weights(model),
            {key: dict(value) for key, value in optimizer.state_dict()["state"].items()},
        )
        train(ddp, optimizer, rank, [4], poison={(4, 0)})
        assert torch.equal(weights(model), before), f"{scheme}: a void step has moved weights"
        assert handle.step_report.skipped and handle.report().skipped == 1
        after = optimizer.state_dict()["state"]
        assert all(
            torch.equal(after[k]["momentum_buffer"], v["momentum_buffer"])
            for k, v in state.items()
            if v.get("momentum_buffer") is not None
        )
        train(ddp, optimizer, rank, range(5, 8))
        assert not handle.step_report.skipped and not torch.equal(weights(model), before), scheme


def test_a_void_step_leaves_weights_and_optimizer_alone():
    run(2, void_step, ["dense", "dgc", "topk", "powersgd", "terngrad", "signum"])
