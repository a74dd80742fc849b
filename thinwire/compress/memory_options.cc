// memory_options.cc: memory, momentum, nesterov.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/memory_options.h"

namespace thinwire {
namespace {

constexpr std::string_view memory_names[] = {"none", "residual", "momentum"};

}  // namespace

std::vector<Option> momentum_options() {
  return {
      {"momentum", "0.9", "of the optimizer, which must then run without its own, in [0, 1)"},
      {"nesterov", "off", "Nesterov's form of it: on or off"},
  };
}

MemoryRule read_momentum_options(const Options& options) {
  return {options.flag("nesterov") ? Accumulate::nesterov : Accumulate::momentum,
          static_cast<float>(options.number_from("momentum", 0, 1))};
}

std::vector<Option> memory_options(const std::string& fallback) {
  return {
      {"memory", fallback,
       "none, residual (keeps what is not sent), or momentum (the same for the momentum, as dgc "
       "does)"},
      {"momentum", "0.9", "with memory=momentum: of the optimizer, which runs without its own"},
      {"nesterov", "off", "with memory=momentum: Nesterov's form of it: on or off"},
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
