// stripes.cc: finds the cuts of a bucket.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stripes.h"

#include <algorithm>

namespace thinwire {
namespace {

constexpr std::size_t grain = 64;  // elements; keeps whole vectors for the kernels

std::size_t distance(std::size_t a, std::size_t b) { return a > b ? a - b : b - a; }

// Elements per row, where the parameter has at least two dimensions; else 0.
std::size_t row_of(const Parameter& parameter) {
  if (parameter.shape.size() < 2) return 0;
  std::size_t product = 1;
  for (const std::int64_t extent : parameter.shape) product *= static_cast<std::size_t>(extent);
  if (product != parameter.count || product == 0) return 0;
  return parameter.count / static_cast<std::size_t>(parameter.shape[0]);
}

// The best place to cut, at most `slack` away from `at`.
std::size_t cut_near(const Bucket& bucket, std::size_t at, std::size_t slack) {
  for (const Parameter& parameter : bucket.parameters) {
    const std::size_t from = parameter.offset, to = from + parameter.count;
    if (at >= to) continue;
    const std::size_t border = distance(at, from) < distance(at, to) ? from : to;
    if (distance(at, border) <= slack) return border;
    if (const std::size_t row = row_of(parameter); row > 0) {
      const std::size_t between = from + (at - from + row / 2) / row * row;
      if (distance(at, between) <= slack) return between;
    }
    break;
  }
  return (at + grain / 2) / grain * grain;
}

// The elements [from, to) of a parameter, as a parameter at `offset`.
Parameter part_of(const Parameter& parameter, std::size_t from, std::size_t to,
                  std::size_t offset) {
  Parameter part{parameter.name, offset, to - from, parameter.shape};
  if (part.count == parameter.count) return part;
  part.name += "[" + std::to_string(from) + ":" + std::to_string(to) + "]";
  const std::size_t row = row_of(parameter);
  if (row > 0 && from % row == 0 && to % row == 0) {
    part.shape[0] = static_cast<std::int64_t>(part.count / row);
  } else {
    part.shape.clear();
  }
  return part;
}

Stripe stripe_of(const Bucket& bucket, std::size_t first, std::size_t end) {
  Stripe stripe;
  stripe.first = first;
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    const Parameter& parameter = bucket.parameters[i];
    const std::size_t from = std::max(first, parameter.offset);
    const std::size_t to = std::min(end, parameter.offset + parameter.count);
    // An empty parameter belongs to the stripe of the element before it, or to the first stripe.
    const bool empty_here =
        parameter.count == 0 && parameter.offset <= end && (parameter.offset > first || first == 0);
    if (from >= to && !empty_here) continue;
    const std::size_t length = from < to ? to - from : 0, start = from - parameter.offset;
    stripe.bucket.parameters.push_back(
        part_of(parameter, start, start + length, stripe.bucket.elements()));
    stripe.pieces.push_back({i, length == parameter.count});
  }
  return stripe;
}

}  // namespace

std::vector<Stripe> cut(const Bucket& bucket, std::size_t stripes) {
  const std::size_t elements = bucket.elements(), slack = elements / stripes / 8;
  std::vector<Stripe> result;
  std::size_t first = 0;
  for (std::size_t i = 0; i < stripes; ++i) {
    std::size_t end = elements;
    if (i + 1 < stripes)
      end = std::clamp(cut_near(bucket, elements * (i + 1) / stripes, slack), first, elements);
    result.push_back(stripe_of(bucket, first, end));
    result.back().bucket.id = static_cast<std::uint16_t>(2 * (stripes * bucket.id + i));
    first = end;
  }
  return result;
}

}  // namespace thinwire
