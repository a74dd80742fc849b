// setup.cc: compressors, checks and places.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/setup.h"

#include <iterator>

#include "thinwire/compress/registry.h"
#include "thinwire/compress/widened.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/as_device.h"
#include "thinwire/exchange/stream_striped.h"
#include "thinwire/exchange/stream_widened.h"
#include "thinwire/exchange/striped.h"

namespace thinwire {
namespace {

// A state holds numbers as f64, which is exact up to here.
constexpr double last_step = 0x1p53;

}  // namespace

SharedCompressors shared(Compressors compressors) {
  return {std::make_move_iterator(compressors.begin()), std::make_move_iterator(compressors.end())};
}

std::string join(const std::vector<Config>& configs) {
  std::string text;
  for (std::size_t i = 0; i < configs.size();) {
    const std::string one = configs[i].str();
    std::size_t alike = 1;
    while (i + alike < configs.size() && configs[i + alike].str() == one) ++alike;
    text += (text.empty() ? "" : " ") + one +
            (alike < configs.size() ? " x" + std::to_string(alike) : "");
    i += alike;
  }
  return text;
}

Compressors make_compressors(const Site& site, const std::vector<Bucket>& buckets,
                             const std::vector<Config>& configs, const ExchangeKind& kind) {
  if (configs.size() != buckets.size()) {
    fail("exchange: expected a configuration per bucket (", buckets.size(), "), got ",
         configs.size());
  }
  check_fit(kind, site.world);
  Compressors compressors;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    check_fit(kind, configs[i]);
    if (kind.striped()) {
      const Bucket floats = widened(buckets[i]);
      auto stripes = std::make_unique<StripedCompressor>(configs[i], kind, floats, site);
      compressors.push_back(widened(std::move(stripes), buckets[i]));
    } else {
      compressors.push_back(make_compressor(configs[i], buckets[i], site));
    }
  }
  return compressors;
}

Compressors make_stream_compressors(const Site& site, const std::vector<Bucket>& buckets,
                                    const Config& config, const ExchangeKind& kind) {
  check_fit(kind, site.world);
  check_fit(kind, config);
  Compressors compressors;
  for (const Bucket& bucket : buckets) {
    if (kind.striped()) {
      auto stripes = std::make_unique<StreamStriped>(config, kind, widened(bucket), site);
      compressors.push_back(stream_widened(std::move(stripes), bucket, site.device));
    } else {
      compressors.push_back(make_on_device(config, bucket, site));
    }
  }
  return compressors;
}

void check_buckets(const std::vector<Bucket>& buckets, std::size_t compressors) {
  if (compressors != buckets.size()) {
    fail("exchange: expected a compressor per bucket (", buckets.size(), "), got ", compressors);
  }
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].id != i) {
      fail("exchange: expected buckets numbered from 0 without gaps, got number ", buckets[i].id,
           " at place ", i);
    }
    validate(buckets[i]);
  }
}

std::string place_of(int rank, std::uint64_t step, std::size_t bucket) {
  return text_of("rank ", rank, ", step ", step, ", bucket ", bucket);
}

void visit_step(StateVisitor& visitor, std::uint64_t& step) {
  auto number = static_cast<double>(step);
  visitor.number("exchange/step", number, Share::replicated);
  if (!(number >= 0 && number <= last_step))
    fail("state 'exchange/step': expected a number of steps, the checkpoint has ", number);
  step = static_cast<std::uint64_t>(number);
}

}  // namespace thinwire
