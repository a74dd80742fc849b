// chart_svg.h: lines over two axes as inline SVG, complete without scripts or outside resources.
//
// Its looks are the page's: what belongs to series i has class s<i>, and one of raw, line and end;
// the rest is grid, axis, title and hit.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace thinwire::apps {

// `text` as it may stand in HTML or SVG, between tags or inside an attribute. Control characters,
// which no encoding of theirs makes legal, become spaces.
std::string escaped_markup(const std::string& text);

struct Point {
  double x = 0, y = 0;
};

struct Series {
  std::string label;
  std::size_t colour = 0;
  std::vector<Point> points;  // by rising x; a y that is not finite breaks the line
};

// How an axis spells its ticks.
enum class Unit { plain, bytes, seconds };

struct Chart {
  std::string title;
  std::string x_title, y_title;  // with the unit, where the ticks do not say it
  Unit x_unit = Unit::plain;
  bool x_log = false;  // points with x <= 0 are left out then
  std::vector<Series> series;
};

// One <svg>. The y axis is logarithmic when the values span much and are positive; its title then
// says so. Lines of many points are smoothed, over a faint line of the points as they are. Every
// line ends in a marker of its own shape; points show their values in tooltips.
std::string line_chart(const Chart& chart);

// The marker of series `index`, centred on (x, y): for the legend too. 32 differ in colour or shape:
// `compare --schemes all` has 17.
std::string marker(std::size_t index, double x, double y);

inline constexpr std::size_t series_colours = 8;  // then the first comes again, with another marker

// Round values from `low` to `high`: steps of 1, 2 or 5 times a power of ten, about `wanted` of
// them; and, for a logarithmic axis, powers of ten, or 1-2-5 where there are few of those.
std::vector<double> linear_ticks(double low, double high, int wanted);
std::vector<double> log_ticks(double low, double high, std::size_t most);

}  // namespace thinwire::apps
