// chart_svg.h: lines over two axes as inline SVG, complete without scripts or outside resources.
//
// The page styles it: parts of series i have class s<i> and one of band, raw, line, end and dot.
// The rest is grid, axis, title, hit and cross. report_script.h moves the cross and reads values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/chart_axis.h"

namespace thinwire::apps {

// `text` as it may stand in HTML or SVG, between tags or inside an attribute. Control characters,
// which no encoding of theirs makes legal, become spaces.
std::string escaped_markup(const std::string& text);

struct Point {
  double x = 0, y = 0;
  double low = y, high = y;  // the band around y
};

struct Series {
  std::string label;
  std::size_t colour = 0;
  std::vector<Point> points;  // by rising x; a y that is not finite breaks the line
};

struct Chart {
  std::string title;
  std::string x_title, y_title;  // with the unit, where the ticks do not say it
  Unit x_unit = Unit::plain, y_unit = Unit::plain;
  bool x_log = false;  // points with x <= 0 are left out then
  std::vector<Series> series;
};

// One <svg> and a list of the runs with their values at the end, which is the legend. The y axis is
// logarithmic when the values span much and are positive; its title then says so. Lines of many
// points are smoothed, over a faint line of the points as they are. Every line ends in a marker of
// its own shape; points show their values in tooltips.
std::string line_chart(const Chart& chart);

// The marker of series `index`, centred on (x, y), and a piece of line with it for legends. 32 of
// them differ in colour or shape; `compare --schemes all` needs 17.
std::string marker(std::size_t index, double x, double y);
std::string key_of(std::size_t index);

inline constexpr std::size_t series_colours = 8;  // then the first comes again, with another marker

}  // namespace thinwire::apps
