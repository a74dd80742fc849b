"""test_package: the package as an editor and a shell see it: version, command, docstrings, types,
reprs."""

# SPDX-License-Identifier: Apache-2.0
import dataclasses
import inspect
import json
import pathlib
import re
import subprocess
import sys

import pytest
import thinwire
import torch
from workers import net, run, sgd, train, wrap

ROOT = pathlib.Path(__file__).parents[2]


def command(*words):
    """What the console script `thinwire` runs."""
    done = subprocess.run(
        [sys.executable, "-m", "thinwire_command", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_version():
    text = (ROOT / "CMakeLists.txt").read_text()
    assert thinwire.__version__ == re.search(r"project\(thinwire VERSION (\S+)", text)[1]
    assert command("--version").strip() == f"thinwire {thinwire.__version__}"


def test_the_command_is_in_the_package():
    listed = command("schemes")
    for scheme in thinwire.schemes():
        assert re.search(rf"\b{scheme.name}\b", listed), scheme
    assert "--scheme" in command("train", "--help")  # the program that needs torch's libraries
    loads = "import sys, thinwire_command; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", loads], check=True)


def public():
    """Every public name, and every public method and property of a public class."""
    for name in thinwire.__all__:
        thing = getattr(thinwire, name)
        if name == "__version__":
            continue
        yield name, thing
        for key, value in inspect.getmembers(thing) if inspect.isclass(thing) else ():
            ours = isinstance(value, property) or inspect.isfunction(value)
            if ours and not key.startswith("_"):
                yield f"{name}.{key}", value


def test_everything_public_has_a_docstring():
    for name, thing in public():
        assert (thing.__doc__ or "").strip(), name
        assert "(self" not in thing.__doc__[:40], f"{name}: a made-up docstring"


def test_options_are_typed():
    known = {option for scheme in thinwire.schemes() for option in scheme.options}
    assert set(thinwire.SchemeOptions.__annotations__) == known, (
        "SchemeOptions in python/thinwire/_schemes.py lists the options of all schemes"
    )


def test_lines_fit():
    for folder in ("python", "examples/python", "tests/python", "thinwire/torch"):
        for path in sorted((ROOT / folder).rglob("*.*")):
            if path.suffix not in (".py", ".pyi", ".cc", ".h", ".sh", ".txt"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                assert len(line) <= 100, f"{path}:{number}"


def shown(rank, world):
    model = net()
    ddp, optimizer = wrap(model), sgd(model)
    count = sum(parameter.numel() for parameter in model.parameters())
    handle = thinwire.attach(ddp, optimizer, scheme="dgc", density=0.1)
    assert "0 steps" in repr(handle)
    train(ddp, optimizer, rank, range(3))
    train(ddp, optimizer, rank, [3], poison={(3, 1)})
    text = repr(handle)
    assert text.startswith("<thinwire.Handle dgc:density=0.1"), text
    for part in (f"{world} workers", f"{count} parameters", "4 steps (1 skipped)", "of dense"):
        assert part in text, text
    assert str(handle.report()).startswith("4 steps, 1 skipped; "), handle.report()
    assert json.loads(json.dumps(dataclasses.asdict(handle.report())))["steps"] == 4
    assert str(handle.step_report).startswith("step 4: skipped"), handle.step_report
    handle.detach()
    assert repr(handle).endswith("detached>")

    plain, plain_optimizer = (other := net()), sgd(other)
    delayed = thinwire.attach(plain, plain_optimizer, scheme="dense", delay=2)
    train(plain, plain_optimizer, rank, range(3))
    assert repr(delayed).startswith("<thinwire.DelayedHandle dense, 2 workers"), delayed
    assert re.search(r"delay 2, \d messages in flight$", str(delayed.report()))
    delayed.detach()


def test_reprs_say_what_it_is():
    run(2, shown)
    assert repr(thinwire.HookState("topk")) == "<thinwire.HookState topk, not connected yet>"
    assert str(thinwire.schemes()[0]).startswith("dense: ")


def strangers(rank, world):
    """Another model's optimizer is rejected at once, also that of a copy, in every form."""
    model, other = net(), net()
    ddp, theirs = wrap(model), sgd(other)
    of_both = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    first = r"shape \(.*\), the model's first is '0.weight' of shape"
    for scheme in ("dense", "dgc", "topk"):
        with pytest.raises(ValueError, match=f"none of this model's parameters.*{first}"):
            thinwire.attach(ddp, theirs, scheme=scheme)
    for optimizer in (theirs, of_both):
        with pytest.raises(ValueError, match="a parameter of shape.*another model's optimizer"):
            thinwire.attach(model, optimizer, scheme="dense", delay=2)
    thinwire.attach(ddp, of_both, scheme="dense").detach()  # one for two models
    state = thinwire.HookState("dense", optimizer=theirs)  # it does not know the model
    hooked = wrap(net())
    hooked.register_comm_hook(state, thinwire.hook)
    with pytest.raises(ValueError, match="none of this model's parameters"):
        hooked(torch.randn(4, 20)).sum().backward()


def test_another_models_optimizer_is_refused():
    run(2, strangers)
