// chart_svg.cc: scales, ticks and paths.
// SPDX-License-Identifier: Apache-2.0
#include "apps/chart_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "apps/table.h"

namespace thinwire::apps {
namespace {

// The drawing in its own units. A page shows it at about this size, so text keeps its size too.
constexpr double width = 360, height = 280;
constexpr double left = 60, right = 348, top = 12, bottom = 230;

constexpr double log_from = 20;            // a span of at least this needs a logarithmic y axis
constexpr std::size_t smooth_from = 40;    // points; shorter lines are drawn as they are
constexpr std::size_t most_tooltips = 80;  // per line

std::string at(double value) { return printed("%.1f", value); }

std::string attribute(const std::string& name, const std::string& value) {
  return " " + name + "=\"" + value + "\"";
}

struct Scale {
  double low = 0, high = 1;  // values
  double from = 0, to = 1;   // their positions in the drawing
  bool log = false;

  double operator()(double value) const {
    const auto map = [this](double v) { return log ? std::log(v) : v; };
    return from + (to - from) * (map(value) - map(low)) / (map(high) - map(low));
  }
};

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

bool drawable(const Point& point, bool x_log) {
  return std::isfinite(point.x) && std::isfinite(point.y) && (!x_log || point.x > 0);
}

// A mean over the neighbours on both sides, so that the smooth line does not lag behind. At the
// start, where losses fall steeply, the window shrinks to the points that exist. At the end it
// keeps its left half; otherwise the last value would be as noisy as a single point.
std::vector<Point> smoothed(const std::vector<Point>& points) {
  const std::size_t count = points.size();
  const std::size_t reach = count < smooth_from ? 0 : std::max<std::size_t>(2, count / 40);
  std::vector<Point> result = points;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = i - std::min(reach, i),
                      last = std::min(i + std::min(reach, i), count - 1);
    Point sum{0, 0, 0, 0};
    for (std::size_t k = first; k <= last; ++k) {
      sum.y += points[k].y;
      sum.low += points[k].low;
      sum.high += points[k].high;
    }
    const auto window = static_cast<double>(last - first + 1);
    result[i] = {points[i].x, sum.y / window, sum.low / window, sum.high / window};
  }
  return result;
}

std::string path(const std::vector<Point>& points, const Scale& x, const Scale& y, bool x_log) {
  std::string d;
  bool drawing = false;
  for (const Point& point : points) {
    const bool shown = drawable(point, x_log) && (!y.log || point.y > 0);
    if (shown) d += (drawing ? "L" : "M") + at(x(point.x)) + " " + at(y(point.y));
    drawing = shown;
  }
  return d;
}

std::string line(const char* style, double x1, double y1, double x2, double y2) {
  return "<line" + attribute("class", style) + attribute("x1", at(x1)) + attribute("y1", at(y1)) +
         attribute("x2", at(x2)) + attribute("y2", at(y2)) + "/>\n";
}

std::string text(double x, double y, const char* anchor, const std::string& words,
                 const std::string& more = "") {
  return "<text" + attribute("x", at(x)) + attribute("y", at(y)) +
         attribute("text-anchor", anchor) + more + ">" + escaped_markup(words) + "</text>\n";
}

// One chart while it is being drawn.
class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    for (const Series& series : chart.series) smooth_.push_back(smoothed(series.points));
    x_ = {.from = left, .to = right, .log = chart.x_log};
    y_ = {.from = bottom, .to = top};
    empty_ = !fit();
  }

  std::string str() const {
    std::string svg = "<svg class=\"chart\" role=\"img\"" +
                      attribute("viewBox", "0 0 " + at(width) + " " + at(height)) +
                      attribute("aria-label", escaped_markup(chart_.title));
    if (empty_)
      return svg + ">\n" + text(width / 2, height / 2, "middle", "no values") + "</svg>\n";
    svg += scales() + ">\n" + x_axis() + y_axis();
    // Draws in passes, so that no faint line lies over a strong one.
    const auto each = [&](auto draw) {
      for (std::size_t i = 0; i < smooth_.size(); ++i) svg += (this->*draw)(i);
    };
    each(&Drawing::band);
    each(&Drawing::raw);
    each(&Drawing::strong);
    each(&Drawing::tooltips);
    svg += "<g class=\"cross\">" + line("axis", left, top, left, bottom);
    each(&Drawing::dot);
    return svg + "</g></svg>\n" + readings();
  }

 private:
  bool fit() {
    Range x, y;
    for (const std::vector<Point>& points : smooth_) {
      for (const Point& point : points) {
        if (!drawable(point, chart_.x_log)) continue;
        x.take(point.x);
        y.take(point.low);
        y.take(point.high);
      }
    }
    if (x.empty()) return false;
    fit_x(x);
    y_.log = y.low > 0 && y.high / y.low > log_from;
    y_.log ? fit_log(y) : fit_linear(y);
    return true;
  }

  void fit_x(const Range& x) {
    x_.low = chart_.x_log ? x.low : std::min(0.0, x.low);
    x_.high = x.high > x_.low ? x.high : x_.low + (chart_.x_log ? x_.low : 1);
  }

  void fit_log(const Range& y) {
    y_.low = y.low / 1.15;
    y_.high = y.high * 1.15;
  }

  // Starts at zero if that wastes little space.
  void fit_linear(const Range& y) {
    const double spare = y.high > y.low ? 0.06 * (y.high - y.low) : 0.5 * std::abs(y.high) + 0.1;
    y_.low = y.low >= 0 && y.low < 0.4 * y.high ? 0 : y.low - spare;
    y_.high = y.high + spare;
  }

  std::string x_axis() const {
    const std::vector<double> ticks =
        x_.log ? log_ticks(x_.low, x_.high, 6) : linear_ticks(x_.low, x_.high, 5);
    std::string svg;
    for (const double tick : ticks) {
      svg += line("grid", x_(tick), top, x_(tick), bottom);
      // A label at the very edge would extend beyond the drawing.
      const char* anchor = x_(tick) > right - 8 ? "end" : "middle";
      svg += text(x_(tick), bottom + 17, anchor, unit_text(tick, chart_.x_unit));
    }
    const std::string title = chart_.x_title + (x_.log ? ", log scale" : "");
    return svg + line("axis", left, bottom, right, bottom) +
           text((left + right) / 2, bottom + 40, "middle", title, " class=\"title\"");
  }

  std::string y_axis() const {
    const std::vector<double> ticks =
        y_.log ? log_ticks(y_.low, y_.high, 8) : linear_ticks(y_.low, y_.high, 5);
    std::string svg;
    for (const double tick : ticks) {
      svg += line("grid", left, y_(tick), right, y_(tick));
      svg += text(left - 7, y_(tick) + 4, "end", unit_text(tick, chart_.y_unit));
    }
    const std::string title = chart_.y_title + (y_.log ? ", log scale" : "");
    const double middle = (top + bottom) / 2;
    return svg +
           text(0, 0, "middle", title,
                " class=\"title\" transform=\"translate(11 " + at(middle) + ") rotate(-90)\"");
  }

  // What the script needs to convert positions into values.
  std::string scales() const {
    const auto number = [](double value) { return printed("%.9g", value); };
    return attribute("data-x", number(x_.low) + " " + number(x_.high) + (x_.log ? " log" : "")) +
           attribute("data-unit", unit_name(chart_.x_unit)) +
           attribute("data-title", escaped_markup(chart_.x_title)) +
           attribute("data-value-unit", unit_name(chart_.y_unit)) +
           attribute("data-plot", at(left) + " " + at(right)) + (y_.log ? " data-log=\"\"" : "") +
           attribute("tabindex", "0");
  }

  // `kind` is the class. All parts of one series share its colour.
  std::string stroke(const char* kind, std::size_t index) const {
    const std::size_t colour = chart_.series[index].colour % series_colours;
    return attribute("class", std::string(kind) + " s" + std::to_string(colour));
  }

  // Along the upper edge and back along the lower. Empty with one seed.
  std::string band(std::size_t index) const {
    std::vector<Point> upper, lower;
    for (const Point& point : smooth_[index]) {
      if (!drawable(point, x_.log)) continue;
      upper.push_back({point.x, point.high});
      lower.push_back({point.x, std::max(point.low, y_.low)});
    }
    const bool flat = std::equal(upper.begin(), upper.end(), lower.begin(),
                                 [](const Point& a, const Point& b) { return a.y == b.y; });
    if (flat) return "";
    upper.insert(upper.end(), lower.rbegin(), lower.rend());
    return "<path" + stroke("band", index) + attribute("d", path(upper, x_, y_, x_.log) + "Z") +
           "/>\n";
  }

  // Noise may exceed the plot, whose size follows from the smooth lines.
  std::string raw(std::size_t index) const {
    std::vector<Point> points = chart_.series[index].points;
    if (points.size() < smooth_from) return "";
    for (Point& point : points) {
      if (std::isfinite(point.y)) point.y = std::clamp(point.y, y_.low, y_.high);
    }
    return "<path" + stroke("raw", index) + attribute("d", path(points, x_, y_, x_.log)) + "/>\n";
  }

  // The last point of a line, or null if no part of it is drawn.
  const Point* end_of_line(std::size_t index) const {
    const std::vector<Point>& points = smooth_[index];
    const auto end = std::find_if(points.rbegin(), points.rend(),
                                  [&](const Point& point) { return drawable(point, x_.log); });
    return end == points.rend() ? nullptr : &*end;
  }

  std::string strong(std::size_t index) const {
    const Point* end = end_of_line(index);
    if (end == nullptr) return "";
    return "<path" + stroke("line", index) + attribute("d", path(smooth_[index], x_, y_, x_.log)) +
           "/>\n" + marker(chart_.series[index].colour, x_(end->x), y_(end->y));
  }

  std::string tooltips(std::size_t index) const {
    const std::vector<Point>& points = smooth_[index];
    const std::size_t stride = points.size() / most_tooltips + 1;
    std::string svg;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if ((i % stride != 0 && i + 1 != points.size()) || !drawable(points[i], x_.log)) continue;
      svg += "<circle class=\"hit\" r=\"6\"" + attribute("cx", at(x_(points[i].x))) +
             attribute("cy", at(y_(points[i].y))) + attribute("data-run", std::to_string(index)) +
             attribute("data-value", printed("%.6g", points[i].y)) + "><title>" +
             tooltip(index, points[i]) + "</title></circle>\n";
    }
    return svg;
  }

  std::string tooltip(std::size_t index, const Point& point) const {
    const std::string x = chart_.x_unit == Unit::plain
                              ? chart_.x_title + " " + unit_text(point.x, Unit::plain)
                              : unit_text(point.x, chart_.x_unit);
    return escaped_markup(chart_.series[index].label + "\n" + x + ", " + chart_.y_title + " " +
                          value_text(point.y));
  }

  // The dot where the cross meets the line. The script positions it.
  std::string dot(std::size_t index) const {
    return "<circle r=\"4\"" + stroke("dot", index) + "/>";
  }

  std::string value_text(double value) const {
    return unit_text(std::stod(printed("%.4g", value)), chart_.y_unit);
  }

  std::string readings() const {
    std::string items;
    for (std::size_t i = 0; i < smooth_.size(); ++i) {
      const Point* end = end_of_line(i);
      items += "<li>" + key_of(chart_.series[i].colour) + "<span>" +
               escaped_markup(chart_.series[i].label) + "</span><b>" +
               (end == nullptr ? "\u2013" : value_text(end->y)) + "</b></li>\n";
    }
    return "<p class=\"where quiet\">at the end</p>\n<ul class=\"readings\">" + items + "</ul>\n";
  }

  const Chart& chart_;
  std::vector<std::vector<Point>> smooth_;
  Scale x_, y_;
  bool empty_ = false;
};

}  // namespace

std::string escaped_markup(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
    }
  }
  return result;
}

std::string line_chart(const Chart& chart) { return Drawing(chart).str(); }

std::string marker(std::size_t index, double x, double y) {
  // Centred on the origin, of about equal area.
  constexpr std::array<const char*, 4> shapes = {
      "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
      "M-3.6 -3.6h7.2v7.2h-7.2z",
      "M0 -5L4.8 3.6H-4.8z",
      "M0 -5.2L5.2 0L0 5.2L-5.2 0z",
  };
  return "<path" + attribute("class", "end s" + std::to_string(index % series_colours)) +
         attribute("transform", "translate(" + at(x) + " " + at(y) + ")") +
         attribute("d", shapes[(index + index / series_colours) % shapes.size()]) + "/>\n";
}

std::string key_of(std::size_t index) {
  const std::string colour = std::to_string(index % series_colours);
  return "<svg class=\"key\" viewBox=\"0 0 34 14\" aria-hidden=\"true\"><path class=\"line s" +
         colour + "\" d=\"M1 7H33\"/>" + marker(index, 17, 7) + "</svg>";
}

}  // namespace thinwire::apps
