// registry.h: the table of schemes. A new scheme is one file that defines a `Scheme`, and one line
// in registry.cc; command line, documentation and law tests follow from the table.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/compress/compressor.h"
#include "thinwire/core/options.h"
#include "thinwire/core/view.h"

namespace thinwire {

struct Scheme {
  std::string name;
  std::uint8_t id = 0;  // on the wire, for ever
  std::string paper;
  std::string summary;     // one sentence
  std::string bits;        // per element on the wire, as text for tables
  bool reducible = false;  // travels by all-reduce: volume does not grow with the number of workers
  bool biased = false;
  bool feedback = false;  // keeps what it does not send
  bool stochastic = false;
  bool momentum = false;  // accumulates momentum itself: the optimizer must run without its own
  std::vector<Option> options;
  std::vector<std::string>
      variants;  // further settings that the law tests try, as "key=value,key=value"
  // What a rank's encoder writes for a bucket in one step, all rounds and headers counted; null,
  // or 0 for some options, where that depends on the data.
  std::size_t (*bytes)(const Options& options, const Bucket& bucket) = nullptr;
  // Bytes per element that one step's encoding must read and write at least: the floor that
  // `thinwire bench schemes` measures against.
  double traffic = 0;
  // Whether the options, whatever the default, leave what is decoded right on average over the
  // draws; null: `stochastic` and not `biased`.
  bool (*unbiased)(const Options& options) = nullptr;
  std::unique_ptr<Compressor> (*make)(const Options& options, const Bucket& bucket,
                                      const Site& site) = nullptr;
};

const std::vector<const Scheme*>& schemes();

// A scheme of a program's own, for all that follows; it must live until the program ends. Throws when
// its name or id is taken (the table's ids end at 127) or it cannot be made. Not while others look
// schemes up.
void register_scheme(const Scheme& scheme);

// Throws an Error that lists the known names.
const Scheme& find_scheme(std::string_view name);

// What a configuration keeps. A residual is what visit_state() shows as "PARAMETER/v", summed. For
// momentum `memory=` decides where a scheme has it, else the scheme itself.
bool keeps_residual(const Config& config);
bool keeps_momentum(const Config& config);
// Whether its draws make what is decoded right on average (without memory, which adds the past).
bool right_on_average(const Config& config);

// Checks the configuration and the bucket, then makes the compressor.
std::unique_ptr<Compressor> make_compressor(const Config& config, const Bucket& bucket,
                                            const Site& site);

}  // namespace thinwire
