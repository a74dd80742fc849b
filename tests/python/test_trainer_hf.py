"""test_trainer_hf: Hugging Face's Trainer with save and resume."""

# SPDX-License-Identifier: Apache-2.0
import re

import pytest
from test_examples import EXAMPLES, example


def trained(folder, *more):
    text = example(
        2,
        "trainer_gpt2.py",
        "--folder",
        folder,
        "--steps",
        30,
        "--save-every",
        20,
        *more,
        folder=folder,
        HF_HUB_OFFLINE="1",
    )
    line = re.search(r"loss ([0-9.]+) after (\d+) steps \((\d+) of them now\)", text)
    return float(line[1]), int(line[2]), int(line[3])


def test_save_and_resume(tmp_path):
    pytest.importorskip("transformers")
    whole = trained(tmp_path)
    resumed = trained(tmp_path, "--resume", 20)
    assert whole[1:] == (30, 30) and resumed[1:] == (30, 10)
    assert resumed[0] == whole[0] < 4.0, (
        "the resumed run has other bits"
    )  # ln(128) = 4.85 at the start


def test_the_recipe_is_in_the_docs():
    text = (EXAMPLES.parents[1] / "docs" / "pytorch.md").read_text()
    assert "trainer_gpt2.py" in text and "max_grad_norm=0" in text
