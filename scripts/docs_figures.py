#!/usr/bin/env python3
"""docs_figures: draws docs/figures/*.svg from the CSV tables beside them, which docs/results.md
publishes. A figure has its own background, light or dark like the reader's system.
"""

# SPDX-License-Identifier: Apache-2.0
import csv
import math
import pathlib
from xml.sax.saxutils import escape

FIGURES = pathlib.Path(__file__).parents[1] / "docs" / "figures"
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 } .note { font-size: 12px; fill: #59636e }
.back { fill: #ffffff } .axis { stroke: #d1d9e0 }
.base { fill: #9aa4af; stroke: #9aa4af } .torch { fill: #c77700; stroke: #c77700 }
.ours { fill: #0969da; stroke: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .note { fill: #9198a1 } .back { fill: #0d1117 } .axis { stroke: #3d444d }
  .base { fill: #6e7681; stroke: #6e7681 } .torch { fill: #d29922; stroke: #d29922 }
  .ours { fill: #4493f8; stroke: #4493f8 }
}
rect { stroke: none !important } polyline { fill: none !important; stroke-width: 2 }
"""


def text(x, y, words, kind="", anchor="start"):
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {where}>{escape(words)}</text>'


def bar(x, y, width, kind, height=16):
    width = max(1.0, width)
    place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}"'
    return f'<rect class="{kind}" {place} rx="2"/>'


def axis(x, top, bottom):
    return f'<line class="axis" x1="{x}" y1="{top}" x2="{x}" y2="{bottom}"/>'


def figure(name, width, height, title, note, parts):
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}" rx="8"/>',
        text(16, 26, title, "title"),
        *parts,
        text(16, height - 12, note, "note"),
        "</svg>\n",
    ]
    (FIGURES / f"{name}.svg").write_text("\n".join(lines))


def rows_of(name):
    with open(FIGURES / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def kind_of(name):
    """Ours in blue, the competitors in orange, the plain method in grey."""
    if name.startswith(("thinwire", "delayed")):
        return "ours"
    return "torch" if name.startswith(("PyTorch", "FedAvg")) else "base"


def thin_wire(left=212, panel=270, gap=24, top=64, row=26):
    """Steps per second as bars, one panel per bandwidth, all on one scale."""
    rows = rows_of("thin_wire")
    most = max(float(entry["steps_per_second"]) for entry in rows)
    links = list(dict.fromkeys(entry["link"] for entry in rows))
    parts, count = [], 0
    for number, link in enumerate(links):
        entries = [entry for entry in rows if entry["link"] == link]
        x, count = left + number * (panel + gap), len(entries)
        parts += [text(x, 50, link, "title"), axis(x, top - 4, top + row * count - 6)]
        for place, entry in enumerate(entries):
            y, steps = top + place * row, float(entry["steps_per_second"])
            length = steps / most * (panel - 130)
            parts.append(bar(x, y, length, kind_of(entry["name"])))
            parts.append(
                text(
                    x + length + 6,
                    y + 13,
                    f"{steps:.2f} ({float(entry['times_dense']):.3g} × dense)",
                )
            )
            if number == 0:
                parts.append(text(left - 8, y + 13, entry["name"], anchor="end"))
    figure(
        "thin_wire",
        left + len(links) * (panel + gap),
        top + row * count + 34,
        "Steps per second over a thin link",
        "An LSTM of 14.5 million parameters, 4 workers on 2 cores, links limited by the kernel "
        "(tc); higher is better",
        parts,
    )


def every_scheme(zero=280, top=64, row=22, scale=22):
    """Perplexity relative to dense, as bars from zero, in order of bytes."""
    rows = rows_of("every_scheme")
    parts = [
        text(170, 50, "bytes", "title", "end"),
        text(zero, 50, "perplexity against dense", "title"),
        axis(zero, top - 4, top + row * len(rows) - 4),
    ]
    for place, entry in enumerate(rows):
        y, percent, ratio = top + place * row, float(entry["percent"]), float(entry["bytes"])
        length = abs(percent) * scale
        parts += [
            text(100, y + 13, entry["name"], anchor="end"),
            text(170, y + 13, "1" if ratio == 1 else f"1/{ratio:g}", anchor="end"),
            bar(zero if percent >= 0 else zero - length, y, length, "ours"),
            text(zero + max(0, percent) * scale + 6, y + 13, f"{percent:+.1f} %"),
        ]
    figure(
        "every_scheme",
        zero + 17 * scale + 70,
        top + row * len(rows) + 34,
        "What each scheme does to perplexity, and to bytes",
        "Characters, LSTM, 4 workers, 6000 steps, one seed (scatter 1 to 2 %); lower is better",
        parts,
    )


def dgc_mask(left=230, zero=370, top=64, row=15, scale=26, most=8.0):
    """What each mask loses against dense, as bars from zero; longer ones are cut at `most`."""
    kinds = {"on": "torch", "off": "base", "pool": "ours"}
    parts, y, group = [text(zero, 50, "loss against dense", "title")], top, None
    for entry in rows_of("dgc_mask"):
        if (entry["task"], entry["density"]) != group:
            if group is not None:
                y += 6 if entry["task"] == group[0] else 20
            if group is None or entry["task"] != group[0]:
                parts.append(text(16, y + 11, entry["task"], "title"))
            group = (entry["task"], entry["density"])
            parts.append(text(left - 8, y + 11 + row, f"density {entry['density']}", anchor="end"))
        loss = math.inf if entry["loss"] == "diverges" else float(entry["loss"])
        length = min(abs(loss), most) * scale
        words = "diverges" if loss == math.inf else f"{loss:+.1f}{entry['unit']}"
        parts += [
            text(left + 30, y + 11, entry["mask"], "note", "end"),
            bar(zero if loss >= 0 else zero - length, y + 1, length, kinds[entry["mask"]], 12),
            text(zero + max(0.0, length if loss > 0 else 0.0) + 6, y + 11, words, "note"),
        ]
        y += row
    figure(
        "dgc_mask",
        zero + int(most * scale) + 90,
        y + 40,
        "What dgc loses at dense's own learning rate, by mask",
        "4 virtual workers, momentum 0.9; left of the line is better than dense; long bars are cut",
        [axis(zero, top - 4, y + 4), *parts],
    )


def latency(left=60, top=56, width=330, height=200):
    """Milliseconds per step, on a logarithmic axis, over the link's latency."""
    rows = rows_of("latency")
    latencies = [key for key in rows[0] if key != "name"]
    low, high = math.log(3), math.log(250)

    def x_of(number):
        return left + width * number / (len(latencies) - 1)

    def y_of(value):
        return top + height * (high - math.log(value)) / (high - low)

    parts = [
        text(x_of(number), top + height + 20, f"{value} ms", "note", "middle")
        for number, value in enumerate(latencies)
    ]
    for tick in (4, 10, 40, 100):
        parts += [
            text(left - 10, y_of(tick) + 4, str(tick), "note", "end"),
            f'<line class="axis" x1="{left}" y1="{y_of(tick):.1f}" x2="{left + width}" '
            f'y2="{y_of(tick):.1f}"/>',
        ]
    label = 0.0
    for entry in rows:
        name, values = entry["name"], [float(entry[key]) for key in latencies]
        label = max(label + 15, y_of(values[-1]) + 4)  # so that labels do not overlap
        points = " ".join(f"{x_of(n):.1f},{y_of(value):.1f}" for n, value in enumerate(values))
        parts += [
            f'<polyline class="{kind_of(name)}" points="{points}"/>',
            text(left + width + 8, label, f"{name}: {values[-1]:.3g}"),
        ]
    figure(
        "latency",
        left + width + 230,
        top + height + 56,
        "Milliseconds per step over a long link",
        "2 workers, about 5.5 ms of computing per step, an emulated link; lower is better",
        parts,
    )


if __name__ == "__main__":
    thin_wire()
    every_scheme()
    dgc_mask()
    latency()
