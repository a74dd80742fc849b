// timeline_svg.cc: draws bars at fractions of the width, so that text keeps its size on any screen.
// SPDX-License-Identifier: Apache-2.0
#include "apps/timeline_svg.h"

#include <algorithm>
#include <array>

#include "apps/chart_svg.h"
#include "apps/report_parts.h"
#include "apps/report_style.h"

namespace thinwire::apps {
namespace {

constexpr double work_height = 22, gap = 6, axis_height = 20;  // pixels
constexpr double most_of_messages = 150;

struct Kind {
  const char* name;
  const char* style;
  const char* words;
};

constexpr std::array<Kind, 6> kinds = {{
    {"forward", "forward", "forward"},
    {"backward", "backward", "backward"},
    {"update", "update", "update"},
    {"take in", "take", "wait for what is due, and take it in"},
    {"wait", "wait", "wait"},
    {"message", "message", "message in flight"},
}};

const Kind& kind_of(const std::string& name) {
  const auto found =
      std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) { return kind.name == name; });
  return found == kinds.end() ? kinds.back() : *found;
}

std::string attribute(const char* name, const std::string& value) {
  return " " + std::string(name) + "=\"" + value + "\"";
}

std::string pixels(double value) { return printed("%.4g", value); }

std::string text_at(const std::string& x, double y, const char* anchor, const std::string& words) {
  return tag("text", escaped_markup(words),
             "x=\"" + x + "\" y=\"" + pixels(y) + "\" text-anchor=\"" + anchor + "\"") +
         "\n";
}

// One timeline while it is being drawn.
class Picture {
 public:
  Picture(const Timeline& timeline, double span) : timeline_(timeline), span_(span) {
    std::erase_if(timeline_.messages, [&](const Span& each) { return outside(each); });
    lanes_ = lanes_of(timeline_.messages);
    const double count = static_cast<double>(lanes());
    pitch_ = count > 0 ? std::clamp(most_of_messages / count, 2.0, 9.0) : 0;
    bottom_ = work_height + (count > 0 ? gap + pitch_ * count : 0) + 3;
  }

  std::size_t lanes() const {
    return lanes_.empty() ? 0 : 1 + *std::max_element(lanes_.begin(), lanes_.end());
  }
  double height() const { return bottom_ + axis_height; }

  std::string bars() const {
    std::string svg = axis();
    for (const Span& span : timeline_.compute) {
      if (!outside(span)) svg += bar(span, 0, work_height);
    }
    const double thick = pitch_ - std::min(1.5, pitch_ / 4);
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const double y = work_height + gap + pitch_ * static_cast<double>(lanes_[i]);
      svg += bar(timeline_.messages[i], y, thick);
    }
    return svg;
  }

 private:
  bool outside(const Span& span) const { return span.to <= 0 || span.from >= span_; }

  std::string bar(const Span& span, double y, double thick) const {
    const double from = std::max(span.from, 0.0), to = std::min(span.to, span_);
    const Kind& kind = kind_of(span.name);
    const std::string words = std::string(kind.name) +
                              (span.name == "message" ? " " : " of step ") +
                              std::to_string(span.step) + ": " + seconds_text(span.to - span.from);
    return "<rect" + attribute("class", kind.style) + attribute("x", share(from, span_)) +
           attribute("width", share(to - from, span_)) + attribute("y", pixels(y)) +
           attribute("height", pixels(thick)) + ">" + tag("title", escaped_markup(words)) +
           "</rect>\n";
  }

  std::string axis() const {
    std::string svg;
    const double end = span_ * 1e3;
    for (const double tick : linear_ticks(0, end, 5)) {
      const std::string x = share(tick, end);
      svg += "<line class=\"grid\"" + attribute("x1", x) + attribute("x2", x) +
             attribute("y1", "0") + attribute("y2", pixels(bottom_ + 3)) + "/>\n";
      // A label at an edge would extend beyond the picture.
      const char* anchor = tick == 0 ? "start" : tick > 0.93 * end ? "end" : "middle";
      svg += text_at(x, bottom_ + 16, anchor, printed("%.9g", tick) + " ms");
    }
    return svg;
  }

  Timeline timeline_;
  double span_;
  std::vector<std::size_t> lanes_;
  double pitch_ = 0, bottom_ = 0;
};

std::vector<Kind> kinds_in(const std::vector<Timeline>& timelines) {
  const auto has = [](const std::vector<Span>& spans, const Kind& kind) {
    return std::any_of(spans.begin(), spans.end(),
                       [&](const Span& span) { return span.name == kind.name; });
  };
  std::vector<Kind> present;
  for (const Kind& kind : kinds) {
    if (std::any_of(timelines.begin(), timelines.end(), [&](const Timeline& each) {
          return has(each.compute, kind) || has(each.messages, kind);
        }))
      present.push_back(kind);
  }
  return present;
}

std::string swatch(const Kind& kind) {
  return "<rect" + attribute("class", kind.style) + " width=\"12\" height=\"12\" rx=\"2\"/>";
}

}  // namespace

std::string timeline_picture(const Timeline& timeline, double span) {
  const Picture picture(timeline, span);
  return tag("svg", "\n" + picture.bars(),
             "class=\"timeline\" role=\"img\" aria-label=\"timeline of rank 0\" width=\"100%\"" +
                 attribute("height", pixels(picture.height()))) +
         "\n";
}

std::string timeline_legend(const std::vector<Timeline>& timelines) {
  std::string items;
  for (const Kind& kind : kinds_in(timelines)) {
    items +=
        tag("li", tag("svg", swatch(kind), "class=\"swatch\" aria-hidden=\"true\"") + kind.words);
  }
  return tag("ul", items, "class=\"legend\"") + "\n";
}

std::string timeline_words(const Timeline& timeline, double span) {
  const std::size_t steps = steps_within(timeline, span);
  const std::size_t lanes = Picture(timeline, span).lanes();
  std::string text = std::to_string(steps) + (steps == 1 ? " step in " : " steps in ") +
                     printed(span >= 0.1 ? "%.0f" : "%.3g", span * 1e3) + " ms";
  if (lanes > 0) {
    text +=
        ", up to " + std::to_string(lanes) + (lanes == 1 ? " message" : " messages") + " in flight";
  }
  return text;
}

std::string timeline_file(const Timeline& timeline) {
  constexpr double width = 900, margin = 16, legend_height = 26;
  const double span = common_span({timeline});
  const Picture picture(timeline, span);
  const double height = 2 * margin + 2 * legend_height + picture.height();
  std::string legend;
  double x = margin;
  for (const Kind& kind : kinds_in({timeline})) {
    legend += tag("g", swatch(kind), "transform=\"translate(" + pixels(x) + " 16)\"") +
              text_at(pixels(x + 18), 27, "start", kind.words);
    x += 44 + 6.4 * static_cast<double>(std::string(kind.words).size());
  }
  const std::string inner =
      tag("svg", "\n" + picture.bars(),
          "x=\"16\" y=\"68\"" + attribute("width", pixels(width - 2 * margin)) +
              attribute("height", pixels(picture.height())));
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"timeline\" role=\"img\" "
         "aria-label=\"timeline of rank 0\"" +
         attribute("width", pixels(width)) + attribute("height", pixels(height)) +
         attribute("viewBox", "0 0 " + pixels(width) + " " + pixels(height)) + ">\n" +
         tag("style", std::string(report_palette) + timeline_style) +
         "\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n" + legend +
         text_at("16", 54, "start", "rank 0: " + timeline_words(timeline, span)) + inner +
         "\n</svg>\n";
}

}  // namespace thinwire::apps
