// inspect_verdict.cc: times on a link, and the scheme that follows from them.
// SPDX-License-Identifier: Apache-2.0
#include "apps/inspect_verdict.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/table.h"

namespace thinwire::apps {
namespace {

// A scheme must be this much faster than dense to be worthwhile.
constexpr double worthwhile = 0.9;
// A scheme without feedback that keeps at least this share counts as lossless: fp16, bf16.
constexpr double faithful = 0.999;

std::string percent(double part) { return printed(part < 0.1 ? "%.1f %%" : "%.0f %%", 100 * part); }

}  // namespace

double exchange_seconds(const Candidate& candidate, const Link& link, int workers) {
  const auto collectives = static_cast<unsigned>(std::lround(candidate.collectives));
  return average_seconds(link, workers, static_cast<std::uint64_t>(candidate.bytes), collectives,
                         candidate.reducible) +
         candidate.encode_seconds + candidate.decode_seconds * (candidate.reducible ? 1 : workers);
}

double gradient_seconds(const Candidate& candidate, const Link& link, int workers) {
  const double seconds = exchange_seconds(candidate, link, workers);
  return candidate.kept > 0 ? seconds / candidate.kept : std::numeric_limits<double>::infinity();
}

Verdict judge(const std::vector<Candidate>& candidates, double elements, const Link& link,
              int workers) {
  Candidate dense;
  dense.scheme = "dense";
  dense.bytes = 4 * elements;
  dense.kept = 1;
  const double plain = exchange_seconds(dense, link, workers);
  const Candidate* best = &dense;
  double least = worthwhile * plain;
  for (const Candidate& each : candidates) {
    const double seconds = gradient_seconds(each, link, workers);
    if ((each.loses && each.kept < faithful) || seconds >= least) continue;
    best = &each;
    least = seconds;
  }
  const std::string where =
      "Over " + link.str() + " with " + std::to_string(workers) + " workers, ";
  if (best == &dense) {
    return {"dense", where + "dense exchanges a step in " + seconds_text(plain) +
                         ".\nNo scheme carries a gradient's energy in less than " +
                         percent(worthwhile) + " of that time. Take dense."};
  }
  const std::string& name = best->scheme;
  return {name, where + name + " exchanges a step in " +
                    seconds_text(exchange_seconds(*best, link, workers)) + ", dense in " +
                    seconds_text(plain) + ".\nOne message of " + name + " carries " +
                    percent(best->kept) + " of the gradient's energy, so a whole gradient takes " +
                    seconds_text(least) +
                    ",\nthe least of all schemes that lose nothing for good. " + "Take " + name +
                    ".\nTry it: thinwire compare --schemes dense," + name + " --link " +
                    link.str()};
}

}  // namespace thinwire::apps
