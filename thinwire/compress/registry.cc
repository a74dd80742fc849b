// registry.cc: the table.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/registry.h"

#include "thinwire/compress/schemes.h"
#include "thinwire/core/error.h"

namespace thinwire {

const std::vector<const Scheme*>& schemes() {
  static const std::vector<const Scheme*> table = {
      &dense_scheme(),    &fp16_scheme(),  &bf16_scheme(),     &topk_scheme(),
      &dgc_scheme(),      &csc_scheme(),   &onebit_scheme(),   &threshold_scheme(),
      &terngrad_scheme(), &qsgd_scheme(),  &powersgd_scheme(), &signum_scheme(),
      &efsign_scheme(),   &atomo_scheme(), &randomk_scheme(),  &natural_scheme(),
      &int8_scheme(),
  };
  return table;
}

const Scheme& find_scheme(std::string_view name) {
  std::string known;
  for (const Scheme* scheme : schemes()) {
    if (scheme->name == name) return *scheme;
    known += (known.empty() ? "" : ", ") + scheme->name;
  }
  fail("unknown scheme '", name, "'; known: ", known);
}

namespace {

// The value of `memory`, given or by default; empty where the scheme has no such option.
std::string memory_of(const Config& config) {
  if (const auto given = config.options.find("memory"); given != config.options.end())
    return given->second;
  for (const Option& option : find_scheme(config.scheme).options) {
    if (option.name == "memory") return option.fallback;
  }
  return "";
}

}  // namespace

bool keeps_residual(const Config& config) {
  const std::string memory = memory_of(config);
  return memory.empty() ? find_scheme(config.scheme).feedback : memory != "none";
}

bool keeps_momentum(const Config& config) {
  const std::string memory = memory_of(config);
  return memory.empty() ? find_scheme(config.scheme).momentum : memory == "momentum";
}

bool right_on_average(const Config& config) {
  const Scheme& scheme = find_scheme(config.scheme);
  if (scheme.unbiased) return scheme.unbiased(Options(config, scheme.options));
  return scheme.stochastic && !scheme.biased;
}

std::unique_ptr<Compressor> make_compressor(const Config& config, const Bucket& bucket,
                                            const Site& site) {
  const Scheme& scheme = find_scheme(config.scheme);
  validate(bucket);
  if (site.world < 1 || site.rank < 0 || site.rank >= site.world) {
    fail("scheme '", scheme.name, "': expected a rank from 0 to ", site.world - 1, ", got ",
         site.rank);
  }
  return scheme.make(Options(config, scheme.options), bucket, site);
}

}  // namespace thinwire
