// chart_svg.h: lines over two axes as inline SVG, complete without scripts or external resources.
//
// The page styles it: parts of series i have class s<i> and one of band, raw, line, end and dot.
// The rest is grid, axis, title, hit and cross. report_script.h moves the cross and reads values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "apps/chart_axis.h"

namespace thinwire::apps {

// `text` escaped for HTML or SVG, between tags or inside an attribute. Control characters become
// spaces, because no encoding makes them legal.
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
  std::string x_title, y_title;  // with the unit, unless the ticks show it
  Unit x_unit = Unit::plain, y_unit = Unit::plain;
  bool x_log = false;  // leaves out points with x <= 0
  std::vector<Series> series;
};

// One <svg>, and a list of the runs with their final values, which is the legend. The y axis is
// logarithmic when the values are positive and span a wide range; its title then says so. Lines of
// many points are smoothed, over a faint line of the raw points. Every line ends in a marker of its
// own shape, and tooltips show the values of points.
std::string line_chart(const Chart& chart);

// The marker of series `index`, centred on (x, y), and one with a piece of line for legends. The
// first 32 differ in colour or shape; `compare --schemes all` needs 17.
std::string marker(std::size_t index, double x, double y);
std::string key_of(std::size_t index);

inline constexpr std::size_t series_colours = 8;  // then colours repeat, with another marker

}  // namespace thinwire::apps
