// report_style.h: the style of the report, from a phone to a wide screen, light, dark and in print.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace thinwire::apps {

// Series colours follow Okabe and Ito, who chose them for colour-blind readers. The first is
// neutral, for the baseline run.
inline constexpr const char* report_palette = R"css(
:root {
  color-scheme: light dark;
  --page: #fdfdfc; --ink: #1d2329; --quiet: #5b6570; --rule: #dde1e5; --panel: #f3f5f6;
  --grid: #e4e8eb;
  --warn-ink: #6b4300; --warn: #fff3d6; --warn-rule: #ecc878;
  --s0: #4a5158; --s1: #0072b2; --s2: #d55e00; --s3: #008f68; --s4: #b14c8b; --s5: #a87b00;
  --s6: #3b9fd8; --s7: #7a4fc0;
  --compute: #a3adb6; --encode: #e69f00; --exchange: #0072b2; --decode: #8f3f71;
  --forward: #c3cad0; --backward: #939ea8; --update: #56616b; --take: #cf6a4c; --wait: #e9b9aa;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #14181c; --ink: #e6e9ec; --quiet: #9aa5af; --rule: #303840; --panel: #1b2127;
    --grid: #2a3138;
    --warn-ink: #f5d694; --warn: #33290f; --warn-rule: #6d561c;
    --s0: #c3cad1; --s1: #56b4e9; --s2: #ff8b45; --s3: #2fc79b; --s4: #e798c8; --s5: #ead04c;
    --s6: #8ea2ff; --s7: #c8a2ff;
    --compute: #6d7882; --encode: #e6a920; --exchange: #4aa3dd; --decode: #d184b4;
    --forward: #55606a; --backward: #84909b; --update: #c0c9d1; --take: #e08263; --wait: #8d5443;
  }
}
)css";

inline constexpr const char* report_style = R"css(
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1440px; margin: 0 auto; padding: clamp(1rem, 3vw, 2.5rem); }
h1 { font-size: clamp(1.5rem, 1.1rem + 1.6vw, 2.2rem); line-height: 1.2; letter-spacing: -.015em;
  margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .3rem; }
h3 { font-size: .95rem; margin: 0 0 .4rem; }
p { margin: .3rem 0 .6rem; max-width: 90ch; }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 1.4rem; margin: .6rem 0 .9rem; }
.facts dt { font-size: .78rem; } .facts .wide { flex-basis: 100%; }
.verdict { margin: 1.1rem 0; padding: .1rem 0 .1rem 1rem; border-left: 3px solid var(--s1); }
.lead { font-size: 1.15rem; font-weight: 600; }
.verdict, .legend, td { overflow-wrap: anywhere; min-width: 0; }
.quiet { color: var(--quiet); font-size: .9rem; }
.warn { display: inline-block; margin: .7rem 0 0; padding: .35rem .7rem; border-radius: 6px;
  font-size: .9rem; color: var(--warn-ink); background: var(--warn);
  border: 1px solid var(--warn-rule); }
code { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .85em; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0;
  font-variant-numeric: tabular-nums; }
th { text-align: right; font-size: .82rem; font-weight: 600; color: var(--quiet);
  vertical-align: bottom; }
th, td { padding: .5rem .7rem; border-bottom: 1px solid var(--rule); }
td { text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; padding-left: 0; }
td:first-child .quiet { display: block; font-weight: 400; }
td:first-child { font-weight: 600; }
.key { width: 34px; height: 14px; vertical-align: -1px; margin-right: .5rem; }
.bad { color: var(--s2); font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; list-style: none;
  margin: .5rem 0 1rem; padding: 0; font-size: .9rem; }
.charts { display: grid; gap: 1.5rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); }
.charts figure, .bars figure { margin: 0; min-width: 0; }
.chart { display: block; touch-action: pan-y; outline: 0; width: 100%; max-width: 560px;
  height: auto; font-size: 12px; }
.chart text { fill: var(--quiet); font-variant-numeric: tabular-nums; }
.chart .title { fill: var(--ink); }
.axis { stroke: var(--quiet); stroke-width: 1; }
.raw, .line { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.raw { stroke-width: 1; opacity: .36; }
.line { stroke-width: 2.1; }
.end { stroke: var(--page); stroke-width: 1.2; }
.line, .raw { stroke: var(--own); } .end, .band, .dot, .amount { fill: var(--own); }
.s0 { --own: var(--s0); } .s1 { --own: var(--s1); } .s2 { --own: var(--s2); }
.s3 { --own: var(--s3); } .s4 { --own: var(--s4); } .s5 { --own: var(--s5); }
.s6 { --own: var(--s6); } .s7 { --own: var(--s7); }
.band { stroke: none; opacity: .17; }
td.amount { min-width: 10rem; }
.dot { stroke: var(--page); stroke-width: 1.5; }
.cross { visibility: hidden; pointer-events: none; } .cross.shown { visibility: visible; }
.cross .axis { stroke-dasharray: 3 3; }
.chart:focus-visible { outline: 2px solid var(--s1); outline-offset: 2px; }
.where { margin: .2rem 0 0; } .past { color: var(--quiet); }
.readings { list-style: none; margin: .1rem 0 0; padding: 0; font-size: .86rem; max-width: 560px; }
.readings li { display: flex; align-items: baseline; border-top: 1px solid var(--grid);
  padding: .12rem 0; }
.readings span { flex: 1; min-width: 0; overflow-wrap: anywhere; }
.readings b { font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap;
  margin-left: .6rem; }
.meter { display: block; width: 100%; height: 8px; margin-top: .2rem; background: var(--panel);
  overflow: visible; border-radius: 2px; }
.whisker { stroke: var(--ink); stroke-width: 2; }
.missed { text-align: left; color: var(--quiet); font-style: italic; }
.guess { color: var(--quiet); }
.hit { fill: transparent; }
.hit:hover { fill: var(--ink); fill-opacity: .25; }
.bars { display: grid; gap: 1.1rem; }
.bar { display: block; width: 100%; height: 22px; background: var(--panel); overflow: visible;
  margin: 4px 0; }
figure .timeline { display: block; margin: 4px 0; overflow: visible; }
.bars .name { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem;
  font-size: .95rem; }
.bars .name b { font-weight: 600; overflow-wrap: anywhere; min-width: 0; }
.swatch { width: 12px; height: 12px; margin-right: .45rem; vertical-align: -1px; }
.compute { fill: var(--compute); } .encode { fill: var(--encode); }
.exchange { fill: var(--exchange); } .decode { fill: var(--decode); }
.mark { stroke: var(--ink); stroke-width: 2; }
dt { color: var(--quiet); } dd { margin: 0; }
@media screen and (max-width: 999px) {
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table, tbody { display: block; }
  tr { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 0 1.2rem;
    padding: .8rem 0; border-bottom: 1px solid var(--rule); }
  td { display: flex; justify-content: space-between; gap: .5rem; padding: .12rem 0; border: 0;
    font-size: .85rem; }
  td:first-child { display: block; grid-column: 1 / -1; font-size: 1rem; padding-bottom: .3rem; }
  td.amount { display: grid; grid-template-columns: auto 1fr; min-width: 0; }
  td.amount .meter { grid-column: 1 / -1; }
  td.amount, td.whole, td.guess, td.missed { grid-column: 1 / -1; }
  td[data-label]::before { content: attr(data-label); color: var(--quiet); white-space: nowrap; }
}
@media screen and (min-width: 1000px) {
  td:first-child { min-width: min(22.5rem, 100vw - 790px); }
}
@media print {
  :root { --page: #fff; --ink: #000; --quiet: #444; color-scheme: light; }
  html { font-size: 10.5px; }
  main { max-width: none; padding: 0; }
  th, td { padding: .4rem; }
  td:first-child { min-width: 22.5rem; }
  .charts { grid-template-columns: repeat(3, 1fr); gap: 1rem; }
  .chart { font-size: 13.5px; }
  figure, tr, table, .verdict { break-inside: avoid; }
  h2, h2 + p, .legend { break-after: avoid; }
}
)css";

// For timelines, on the page and in their own files.
inline constexpr const char* timeline_style = R"css(
.grid { stroke: var(--grid); stroke-width: 1; }
.page { fill: var(--page); }
.timeline { font-size: 12px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
.timeline text { fill: var(--quiet); font-variant-numeric: tabular-nums; }
.forward { fill: var(--forward); } .backward { fill: var(--backward); }
.update { fill: var(--update); }
.take { fill: var(--take); } .wait { fill: var(--wait); } .message { fill: var(--exchange); }
.timeline .message { stroke: var(--page); stroke-width: .6; }
.timeline rect:hover { opacity: .7; }
.timeline .page:hover { opacity: 1; }
)css";

}  // namespace thinwire::apps
