// measure.cc: an exchange in a group of one worker.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/measure.h"

#include <algorithm>
#include <memory>

#include "thinwire/comm/local.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/exchange.h"
#include "thinwire/torch/flat.h"

namespace thinwire::ddp {
namespace {

bool has(const Config& config, const char* option, const char* value) {
  const auto found = config.options.find(option);
  return found != config.options.end() && found->second == value;
}

// The squared cosine between two gradients: the energy that is right, whatever the scale.
double squared_cosine(const Arrays& a, const Arrays& b) {
  double product = 0, of_a = 0, of_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < a[i].size(); ++k) {
      const double x = static_cast<double>(a[i][k]), y = static_cast<double>(b[i][k]);
      product += x * y;
      of_a += x * x;
      of_b += y * y;
    }
  return product == 0 ? 0 : std::min(1.0, product * product / (of_a * of_b));
}

}  // namespace

Measured measure(const Config& config, const Cut& cut,
                 const std::vector<std::vector<at::Tensor>>& gradients) {
  const std::vector<Bucket> buckets = buckets_of(cut);
  const std::unique_ptr<Group> group = std::move(make_local_groups(1).front());
  Flat given(buckets), arrived(buckets);  // outlive the exchange
  Exchange exchange(*group, buckets, config);
  const Scheme& scheme = find_scheme(config.scheme);
  Measured found;
  found.reducible = scheme.reducible;
  found.loses = scheme.biased && (!scheme.feedback || has(config, "feedback", "off") ||
                                  has(config, "memory", "none"));
  std::uint64_t before = 0;
  for (std::size_t step = 0; step < gradients.size(); ++step) {
    if (step == gradients.size() / 2) before = exchange.report().payload_bytes;
    given.take(gradients[step]);
    arrived.take(gradients[step]);
    const Arrays arrays = arrived.arrays();
    for (std::size_t i = 0; i < arrays.size(); ++i)
      exchange.submit(static_cast<std::uint16_t>(i), arrays[i]);
    if (exchange.finish().skipped)
      fail("scheme '", config.str(), "', batch ", step, ": the gradient is not finite");
    if (step == 0) found.kept = squared_cosine(given.arrays(), arrays);
  }
  const Report report = exchange.report();
  const auto steps = static_cast<double>(gradients.size());
  found.payload_bytes = static_cast<double>(report.payload_bytes - before) /
                        static_cast<double>(gradients.size() - gradients.size() / 2);
  found.collectives = std::max(1.0, static_cast<double>(report.traffic.collectives) / steps /
                                        static_cast<double>(buckets.size()));
  found.encode_seconds = report.encode_seconds / steps;
  found.decode_seconds = report.decode_seconds / steps;
  return found;
}

}  // namespace thinwire::ddp
