// memory_options.cc: memory, momentum, nesterov.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/memory_options.h"

namespace thinwire {
namespace {

constexpr std::string_view memory_names[] = {"none", "residual", "momentum"};

}  // namespace

std::vector<Option> momentum_options() {
  return {
      {"momentum", "0.9", "Momentum factor in [0, 1). Set the optimizer's own momentum to 0."},
      {"nesterov", "off", "Use Nesterov's form of momentum: on or off."},
  };
}

MemoryRule read_momentum_options(const Options& options) {
  return {options.flag("nesterov") ? Accumulate::nesterov : Accumulate::momentum,
          static_cast<float>(options.number_from("momentum", 0, 1))};
}

std::vector<Option> memory_options(const std::string& fallback) {
  return {
      {"memory", fallback,
       "What the scheme keeps: none, residual (what is not sent), or momentum (momentum and "
       "residual, as dgc)."},
      {"momentum", "0.9",
       "With memory=momentum: momentum factor in [0, 1). Set the optimizer's own momentum to 0."},
      {"nesterov", "off", "With memory=momentum: use Nesterov's form of momentum: on or off."},
  };
}

MemoryRule read_memory_options(const Options& options) {
  MemoryRule rule = read_momentum_options(options);
  const std::size_t memory = options.choice("memory", memory_names);
  if (memory == 0) rule.accumulate = Accumulate::none;
  if (memory == 1) rule.accumulate = Accumulate::residual;
  return rule;
}

}  // namespace thinwire
