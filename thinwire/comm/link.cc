// link.cc: parses links and prices collectives on them.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/link.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <set>
#include <span>
#include <vector>

#include "thinwire/comm/cost.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};
constexpr Unit kBandwidths[] = {{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}};
constexpr Unit kTimes[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}};

[[noreturn]] void refuse(std::string_view text) {
  fail("link '", text,
       "': expected BANDWIDTH[,LATENCY][,jitter=TIME][,outage=LENGTH/EVERY][,seed=N] such as "
       "100mbit, 1gbit,20ms, inf,50us or 100mbit,20ms,jitter=5ms,outage=2s/30s,seed=7 "
       "(kbit, mbit, gbit or inf; us, ms or s)");
}

// Parses a plain decimal number and one of `units`. The error shows `whole`.
double quantity(std::string_view text, std::span<const Unit> units, std::string_view whole) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(value) || std::signbit(value)) refuse(whole);
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  for (const Unit& unit : units)
    if (suffix == unit.name) return value * unit.factor;
  refuse(whole);
}

// The value in the largest unit that leaves a number of at least 1.
std::string written(double value, std::span<const Unit> units) {
  auto unit = units.begin();
  while (unit + 1 != units.end() && value < unit->factor) ++unit;
  char text[48];
  std::snprintf(text, sizeof text, "%.12g%.*s", value / unit->factor,
                static_cast<int>(unit->name.size()), unit->name.data());
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// "2s/30s"
void read_outage(std::string_view value, std::string_view whole, Link& link) {
  const std::vector<std::string_view> times = split(value, '/');
  if (times.size() != 2) refuse(whole);
  link.outage_seconds = quantity(times[0], kTimes, whole);
  link.every_seconds = quantity(times[1], kTimes, whole);
  if (link.outage_seconds > 0 && link.outage_seconds <= link.every_seconds / 2) return;
  fail("link '", whole, "': outage=", value,
       ": expected a LENGTH above 0 and at most half of EVERY, such as outage=2s/30s");
}

// Reads "jitter=5ms" and so on. Returns the option's name.
std::string_view read_option(std::string_view option, std::string_view whole, Link& link) {
  const std::size_t equals = option.find('=');
  if (equals == option.npos) refuse(whole);
  const std::string_view name = option.substr(0, equals), value = option.substr(equals + 1);
  if (name == "jitter") {
    link.jitter_seconds = quantity(value, kTimes, whole);
  } else if (name == "outage") {
    read_outage(value, whole, link);
  } else if (name == "seed") {
    const char* const end = value.data() + value.size();
    const auto [rest, error] = std::from_chars(value.data(), end, link.seed);
    if (error != std::errc{} || rest != end) refuse(whole);
  } else {
    refuse(whole);
  }
  return name;
}

}  // namespace

Link Link::parse(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ',');
  Link link;
  if (parts[0] != "inf") {
    link.bytes_per_second = quantity(parts[0], kBandwidths, text) / 8;
    if (link.bytes_per_second == 0) refuse(text);
  }
  std::size_t next = 1;
  if (next < parts.size() && parts[next].find('=') == text.npos)
    link.latency_seconds = quantity(parts[next++], kTimes, text);
  std::set<std::string_view> seen;
  for (; next < parts.size(); ++next) {
    if (!seen.insert(read_option(parts[next], text, link)).second) refuse(text);
  }
  if (link.steady() && seen.contains("seed"))
    fail("link '", text, "': a seed has no effect without jitter or an outage; leave it out");
  return link;
}

std::string Link::str() const {
  std::string text = "inf";
  if (bytes_per_second > 0) text = written(bytes_per_second * 8, kBandwidths);
  if (latency_seconds > 0) text.append(",").append(written(latency_seconds, kTimes));
  if (jitter_seconds > 0) text.append(",jitter=").append(written(jitter_seconds, kTimes));
  if (outage_seconds > 0) {
    text.append(",outage=").append(written(outage_seconds, kTimes));
    text.append("/").append(written(every_seconds, kTimes));
  }
  if (!steady()) text.append(",seed=").append(std::to_string(seed));
  return text;
}

double Link::seconds(const Cost& cost) const {
  const auto latencies = [&](std::uint64_t steps) {
    return static_cast<double>(steps) * latency_seconds;
  };
  return wire_seconds(cost.path) +
         lag(cost, latencies(cost.lead + 1), latencies(cost.lead + cost.steps));
}

double Link::wire_seconds(std::uint64_t bytes) const {
  constexpr double framing = 1514.0 / 1448;
  return bytes_per_second > 0 ? framing * static_cast<double>(bytes) / bytes_per_second : 0;
}

double Link::lag(const Cost& cost, double first, double all) const {
  if (cost.piece == 0) return all;
  // The last piece leaves at the end of the first step, and passes each later step alone.
  const auto steps = static_cast<double>(cost.steps);
  const double path = wire_seconds(cost.path);
  return std::max(first, all + path / steps + (steps - 1) * wire_seconds(cost.piece) - path);
}

double average_seconds(const Link& link, int workers, std::uint64_t bytes, unsigned collectives,
                       bool sums) {
  const Call call{.kind = sums ? Kind::all_reduce : Kind::all_gather, .bytes = bytes / collectives};
  std::vector<std::size_t> sizes(static_cast<std::size_t>(workers), call.bytes);
  return collectives * link.seconds(c10d_cost(call, {.sizes = sizes}, 0, workers));
}

}  // namespace thinwire
