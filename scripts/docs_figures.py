#!/usr/bin/env python3
"""docs_figures: draws docs/figures/thin_wire.svg from thin_wire.csv, the published table "Over a thin
wire" of docs/results.md. The figure brings its own background, light or dark as the reader's system.
"""
# SPDX-License-Identifier: Apache-2.0
import csv
import pathlib
from xml.sax.saxutils import escape

FIGURES = pathlib.Path(__file__).parents[1] / "docs" / "figures"
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 } .note { font-size: 12px; fill: #59636e }
.back { fill: #ffffff } .axis { stroke: #d1d9e0 }
.base { fill: #9aa4af } .torch { fill: #c77700 } .ours { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9198a1 } .back { fill: #0d1117 } .axis { stroke: #3d444d }
  .base { fill: #6e7681 } .torch { fill: #d29922 } .ours { fill: #4493f8 }
}
"""
LEFT, PANEL, GAP, TOP, ROW, BAR = 212, 270, 24, 64, 26, 16


def kind_of(name):
    return "ours" if name.startswith("thinwire") else "torch" if name.startswith("PyTorch") else "base"


def draw(panels):
    """Bars of steps per second, one panel per bandwidth, all on one scale."""
    names = [row["name"] for row in next(iter(panels.values()))]
    most = max(float(row["steps_per_second"]) for rows in panels.values() for row in rows)
    bottom = TOP + ROW * len(names)
    width, height = LEFT + len(panels) * (PANEL + GAP), bottom + 34
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
             "<title>Steps per second of DDP over thin links</title>", f"<style>{STYLE}</style>",
             f'<rect class="back" width="{width}" height="{height}" rx="8"/>',
             '<text class="title" x="16" y="26">Steps per second over a thin link</text>']
    for row, name in enumerate(names):
        lines.append(f'<text x="{LEFT - 8}" y="{TOP + row * ROW + 13}" text-anchor="end">'
                     f"{escape(name)}</text>")
    for panel, (link, rows) in enumerate(panels.items()):
        x = LEFT + panel * (PANEL + GAP)
        lines.append(f'<text class="title" x="{x}" y="50">{escape(link)}</text>')
        lines.append(f'<line class="axis" x1="{x}" y1="{TOP - 4}" x2="{x}" y2="{bottom - 6}"/>')
        for number, row in enumerate(rows):
            y, steps = TOP + number * ROW, float(row["steps_per_second"])
            length = max(1.0, steps / most * (PANEL - 130))
            lines.append(f'<rect class="{kind_of(row["name"])}" x="{x}" y="{y}" '
                         f'width="{length:.1f}" height="{BAR}" rx="2"/>')
            lines.append(f'<text x="{x + length + 6:.1f}" y="{y + 13}">{steps:.2f} '
                         f'({float(row["times_dense"]):.3g} × dense)</text>')
    lines.append(f'<text class="note" x="16" y="{height - 12}">An LSTM of 14.5 million parameters, '
                 "4 workers on 2 cores, links limited by the kernel (tc); higher is better</text>")
    return "\n".join([*lines, "</svg>\n"])


def main():
    panels = {}
    with open(FIGURES / "thin_wire.csv", newline="") as file:
        for row in csv.DictReader(file):
            panels.setdefault(row["link"], []).append(row)
    (FIGURES / "thin_wire.svg").write_text(draw(panels))


if __name__ == "__main__":
    main()
