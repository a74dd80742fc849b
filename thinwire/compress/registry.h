// registry.h: the table of schemes. A new scheme is one file that defines a `Scheme`, and one line
// in registry.cc. The command line, the documentation and the tests of the laws follow from the
// table.
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
  std::uint8_t id = 0;  // on the wire; never reused
  std::string paper;
  std::string summary;     // one sentence
  std::string bits;        // per element on the wire, as text for tables
  bool reducible = false;  // sent by all-reduce: bytes do not grow with the number of workers
  bool biased = false;
  bool feedback = false;  // keeps what it does not send (error feedback)
  bool stochastic = false;
  bool momentum = false;  // by default it accumulates momentum: the optimizer's own must be 0
  bool cuda = false;      // has kernels for CUDA (Site::device)
  // Why it works on the host with these options, wherever the gradients are, as a clause; null: it
  // does not. See why_on_host().
  const char* (*host)(const Options& options) = nullptr;
  // Its code for the CPU takes gradients in f16 and bf16, as all code for CUDA does. Where it does
  // not, they are widened for it (compress/widened.h).
  bool halves = false;
  std::vector<Option> options;
  // Further settings for the tests of the laws, as "key=value,key=value".
  std::vector<std::string> variants;
  // The bytes that a rank's encoder writes for a bucket in one step, including all rounds and
  // headers. Where that depends on the data it is null, or returns 0.
  std::size_t (*bytes)(const Options& options, const Bucket& bucket) = nullptr;
  // The fewest bytes per element that encoding a step must read and write. `thinwire bench schemes`
  // compares with it.
  double traffic = 0;
  // Whether the decoded gradient is unbiased with these options. Null: it is where the scheme is
  // `stochastic` and not `biased`.
  bool (*unbiased)(const Options& options) = nullptr;
  std::unique_ptr<Compressor> (*make)(const Options& options, const Bucket& bucket,
                                      const Site& site) = nullptr;
};

const std::vector<const Scheme*>& schemes();

// Adds a program's own scheme to the table. `scheme` must live until the program ends. Throws when
// its name or id is taken (built-in ids end at 127), or when it has no `make`. Do not call it while
// other threads look schemes up.
void register_scheme(const Scheme& scheme);

// Throws an Error that lists the known names.
const Scheme& find_scheme(std::string_view name);

// Whether a configuration keeps a residual (visit_state() has "PARAMETER/v", summed), and whether
// it accumulates momentum (the option `memory` decides, where it is given).
bool keeps_residual(const Config& config);
bool keeps_momentum(const Config& config);
// Whether the decoded gradient is unbiased (without memory, which adds earlier gradients).
bool right_on_average(const Config& config);

// Why gradients on CUDA are compressed on the host with this configuration, as a clause; empty
// where they are not. An exchange copies them there and back (exchange/through_host.h).
std::string why_on_host(const Config& config);

// Checks the configuration and the bucket, then creates the compressor. Throws for a device where
// the scheme has no kernels.
std::unique_ptr<Compressor> make_compressor(const Config& config, const Bucket& bucket,
                                            const Site& site);

}  // namespace thinwire
