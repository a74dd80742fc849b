// report_charts.cc: turns the curves of the runs into charts.
// SPDX-License-Identifier: Apache-2.0
#include "apps/report_charts.h"

#include <algorithm>
#include <array>

#include "apps/chart_svg.h"
#include "apps/curve.h"
#include "apps/run_clock.h"

namespace thinwire::apps {
namespace {

struct View {
  double Sample::*x;
  const char* title;
  const char* x_title;
  Unit unit;
  bool log;
};

constexpr std::array<View, 3> views = {{
    {&Sample::seconds, "time", "time in training", Unit::seconds, false},
    {&Sample::bytes, "bytes", "sent by a worker so far", Unit::bytes, true},
    {&Sample::step, "steps", "step", Unit::plain, false},
}};

// A quantity to draw against them.
struct Subject {
  const char* key;
  const char* heading;
  const char* name;
  const char* y_title;
  Unit unit;
};

constexpr Subject of_loss = {"loss", "How the loss falls", "Loss", "training loss", Unit::plain};
constexpr Subject of_perplexity = {"perplexity", "How the perplexity falls", "Perplexity",
                                   "perplexity of the test set", Unit::plain};
constexpr Subject of_word_error = {"word_error", "How the word error rate falls", "Word error rate",
                                   "word error rate on the test set", Unit::percent};
constexpr Subject of_accuracy = {"accuracy", "How the accuracy rises", "Accuracy",
                                 "accuracy on the test set", Unit::percent};

bool is_time(const View& view) { return view.x == &Sample::seconds; }

std::string figure(const Row& runs, const View& view, const Subject& subject) {
  const std::string title = std::string(subject.name) + " against " + view.title;
  const std::string guess =
      is_time(view) && clock_of(runs) == RunClock::estimated ? "estimated " : "";
  Chart chart{title, guess + view.x_title, subject.y_title, view.unit, subject.unit, view.log, {}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Series series{label_of(runs[i]), i, {}};
    for (const Sample& sample : mean_curve(runs[i], subject.key)) {
      series.points.push_back(
          {sample.*view.x, sample.value.mean, sample.value.low, sample.value.high});
    }
    chart.series.push_back(std::move(series));
  }
  return tag("figure", tag("h3", title) + line_chart(chart), "class=\"plot\"") + "\n";
}

// A single value at the end is in the table already.
bool followed(const Row& runs, const Subject& subject) {
  return std::any_of(runs.begin(), runs.end(),
                     [&](const Row& run) { return mean_curve(run, subject.key).size() > 1; });
}

bool has_seeds(const Row& runs) {
  return std::any_of(runs.begin(), runs.end(),
                     [](const Row& run) { return seed_curves(run, "loss").size() > 1; });
}

std::string section(const Row& runs, const Subject& subject, bool first) {
  std::string figures;
  for (const View& view : views) {
    if (!is_time(view) || clock_of(runs) != RunClock::none) figures += figure(runs, view, subject);
  }
  const std::string bands =
      first && has_seeds(runs)
          ? tag("p",
                "Lines are means over the seeds, at the mean time and bytes of a step; "
                "bands reach from the lowest seed to the highest.",
                "class=\"quiet\"") +
                "\n"
          : "";
  return tag("h2", subject.heading) + "\n" + bands + tag("div", figures, "class=\"charts\"") + "\n";
}

}  // namespace

std::string chart_sections(const Row& runs) {
  // People compare the perplexity of language models, not their accuracy.
  const Subject& quality = followed(runs, of_perplexity)   ? of_perplexity
                           : followed(runs, of_word_error) ? of_word_error
                                                           : of_accuracy;
  const bool has_quality = followed(runs, quality);
  return (has_quality ? section(runs, quality, true) : "") + section(runs, of_loss, !has_quality);
}

}  // namespace thinwire::apps
