"""test_examples: runs every example. Starting Python and torch takes longer than most examples, so
torchrun itself starts only one that attaches (test_readme), one with delay, and the C++ one; the
others start as torchrun would start them (workers.run_script)."""

# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import re
import subprocess
import sys

import pytest
from workers import run_script

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "python"
TORCHRUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]


SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "THINWIRE_LOG": "warning",
    "PYTHONWARNINGS": "ignore",
    "THINWIRE_DIGITS": str(ROOT / "data" / "digits.csv"),
}


def output_of(command):
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        env={**os.environ, **SETTINGS},
        timeout=240,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def example(workers, name, *words, folder, **variables):
    return run_script(workers, [EXAMPLES / name, *words], folder, **SETTINGS, **variables)


def accuracy_in(text):
    return float(re.search(r"accuracy ([0-9.]+)", text)[1])


def test_digits_and_a_restart_with_fewer_workers(tmp_path):
    file = tmp_path / "run.pt"
    script = ["digits.py", "--scheme", "dgc", "--density", "0.02", "--save", file]
    first = example(3, *script, "--steps", 40, folder=tmp_path)
    second = example(2, *script, "--steps", 120, folder=tmp_path)
    assert "3 workers" in first and "2 workers" in second and "(40 of them before)" in second
    assert accuracy_in(second) > 0.85


def test_delayed(tmp_path):
    script = ["delayed.py", "--delay", 6, "--local-steps", 2, "--save", tmp_path / "run"]
    output_of([*TORCHRUN, "--nproc-per-node", 2, EXAMPLES / script[0], *script[1:], "--steps", 60])
    text = example(2, *script, "--steps", 120, folder=tmp_path)
    assert (
        "(60 of them before), 2 workers" in text and "delay 6" in text and accuracy_in(text) > 0.8
    )


def test_language(tmp_path):
    text = example(
        2, "language.py", "--density", 0.01, "--steps", 20, "--batch", 4, folder=tmp_path
    )
    first, last = (float(value) for value in re.findall(r"perplexity ([0-9.]+)", text)[::4])
    assert last < first < 120


def test_a_scheme_in_one_file(tmp_path):
    scheme = ["--load-scheme", EXAMPLES / "cyclic.cc", "--scheme", "cyclic:stride=2"]
    text = example(
        2, "digits.py", *scheme, "--steps", 80, folder=tmp_path, HOME=str(tmp_path)
    )
    assert (
        "\ncyclic:stride=2" in f"\n{text}"
        and "1/2 of the bytes" in text
        and accuracy_in(text) > 0.8
    )


def test_lightning():
    pytest.importorskip("lightning")
    text = output_of(
        [
            sys.executable,
            "-W",
            "ignore",
            EXAMPLES / "lightning_digits.py",
            "--workers",
            "2",
            "--steps",
            "60",
        ]
    )
    assert "60 steps, 2 workers" in text and accuracy_in(text) > 0.6


@pytest.mark.parametrize("form", [[], ["--plain"]], ids=["attach", "plain"])
def test_accelerate(form, tmp_path):
    pytest.importorskip("accelerate")
    text = example(2, "accelerate_digits.py", "--steps", 70, *form, folder=tmp_path)
    assert "70 steps, 2 workers" in text and accuracy_in(text) > 0.7


def test_libtorch():
    program = os.environ.get("LIBTORCH_DIGITS", "")
    if not os.path.exists(program):
        pytest.skip("not built")
    text = output_of(
        [
            *TORCHRUN,
            "--no-python",
            "--nproc-per-node",
            "2",
            program,
            "dgc:density=0.02",
            ROOT / "data" / "digits.csv",
            "100",
        ]
    )
    assert "2 workers" in text and accuracy_in(text) > 0.8
