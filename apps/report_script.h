// report_script.h: a crosshair for the charts. The page is complete without it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace thinwire::apps {

// Uses what the chart already contains (chart_svg.cc): the points of every line with their
// values, and the scale of the x axis. The script contains no < and &, so that the page
// stays well-formed XML.
inline constexpr const char* report_script = R"js(
'use strict';
for (const figure of document.querySelectorAll('figure.plot')) {
  const svg = figure.querySelector('svg[data-x]');
  if (!svg) continue;
  const [low, high, log] = svg.dataset.x.split(' ').map((word, i) => i == 2 ? word : Number(word));
  const [left, right] = svg.dataset.plot.split(' ').map(Number);
  const where = figure.querySelector('.where'), cross = svg.querySelector('.cross');
  const dots = cross.querySelectorAll('.dot');
  const cells = [...figure.querySelectorAll('.readings b')], ends = cells.map(b => b.textContent);
  const lines = ends.map(() => []);
  for (const hit of svg.querySelectorAll('.hit')) {
    const at = name => Number(hit.getAttribute(name));
    lines[at('data-run')].push({x: at('cx'), y: at('cy'), value: at('data-value')});
    hit.remove();  // its tooltip would cover what the crosshair says
  }

  const digits = (value, count) => String(Number(value.toPrecision(count)));
  const words = (value, unit) => {
    if (unit == 'percent') return digits(100 * value, 4) + ' %';
    if (unit == 'seconds') {
      return value >= 1 ? digits(value, 4) + ' s' : digits(1e3 * value, 3) + ' ms';
    }
    if (unit != 'bytes') return digits(value, 4);
    const power = Math.min(4, Math.floor(Math.log10(Math.max(1, value)) / 3));
    return digits(value / 1000 ** power, 4) + ' ' + ['B', 'kB', 'MB', 'GB', 'TB'][power];
  };
  const between = (a, b, share) => a + (b - a) * share;
  const value_at = x => {
    const share = (x - left) / (right - left);
    return log ? low * (high / low) ** share : between(low, high, share);
  };
  // On the line at x; past its end the last point, before its start nothing.
  const read = (points, x) => {
    const next = points.findIndex(point => point.x >= x);
    if (next == -1) return points.length ? {...points[points.length - 1], past: true} : null;
    if (next == 0) return points[0].x - x > 0.5 ? null : points[0];
    const a = points[next - 1], b = points[next], share = (x - a.x) / (b.x - a.x);
    const value = 'log' in svg.dataset ? a.value * (b.value / a.value) ** share
                                       : between(a.value, b.value, share);
    return {x, y: between(a.y, b.y, share), value};
  };

  let place = left;
  const show = x => {
    place = Math.min(right, Math.max(left, x));
    const value = value_at(place), unit = svg.dataset.unit;
    where.textContent = unit == 'plain' ? 'at ' + svg.dataset.title + ' ' + Math.round(value)
                                        : 'at ' + words(value, unit);
    const line = cross.querySelector('line');
    line.setAttribute('x1', place);
    line.setAttribute('x2', place);
    lines.forEach((points, i) => {
      const point = read(points, place);
      cells[i].textContent = point ? words(point.value, svg.dataset.valueUnit) : '\u2013';
      cells[i].classList.toggle('past', Boolean(point ? point.past : false));
      dots[i].style.display = point ? '' : 'none';
      if (!point) return;
      dots[i].setAttribute('cx', point.x);
      dots[i].setAttribute('cy', point.y);
    });
    cross.classList.add('shown');
  };
  const leave = () => {
    cross.classList.remove('shown');
    where.textContent = 'at the end';
    cells.forEach((cell, i) => { cell.textContent = ends[i]; cell.classList.remove('past'); });
  };
  const point = event => {
    const box = svg.getBoundingClientRect();
    show((event.clientX - box.left) / box.width * svg.viewBox.baseVal.width);
  };
  svg.addEventListener('pointermove', point);
  svg.addEventListener('pointerdown', point);
  svg.addEventListener('pointerleave', leave);
  svg.addEventListener('blur', leave);
  svg.addEventListener('keydown', event => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!move) return;
    event.preventDefault();
    show(place + move * (right - left) / 50);
  });
}
)js";

}  // namespace thinwire::apps
