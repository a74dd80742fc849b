"""test_readme: the example in README.md runs as printed."""
# SPDX-License-Identifier: Apache-2.0
import re

from test_examples import ROOT, TORCHRUN, output_of


def test_the_example_runs(tmp_path):
    block = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    script = tmp_path / "train.py"
    script.write_text(block[1].replace("range(300)", "range(20)"))
    text = output_of([*TORCHRUN, "--nproc-per-node", "2", script])
    assert "20" in text, f"expected a report of 20 steps, got: {text}"
