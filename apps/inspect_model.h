// inspect_model.h: the half of `thinwire inspect` that looks at a model's gradients: how
// concentrated they are, and how small each scheme makes them. No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/energy.h"
#include "apps/inspect_verdict.h"
#include "apps/table.h"
#include "thinwire/core/options.h"

namespace thinwire::apps {

struct ModelSettings {
  std::string model;        // empty: no model is inspected
  std::string data;         // empty: the data that the model was made for, or noise of that size
  std::string schemes;      // empty: all schemes of the registry
  std::uint64_t steps = 0;  // 0: 20, or 4 for a large model without data
  std::int64_t batch = 0;   // 0: 32, or 4
  std::int64_t sequence = 32;
  std::uint64_t seed = 1;
  double rate = 0.1;
  double bucket_mb = 4;
  std::string link = "1gbit,1ms";  // for the verdict
  int workers = 4;
  int threads = 0;  // 0: torch chooses
  std::string json;
};

// Adds the flags. All of them need --model.
void describe(CLI::App& verb, ModelSettings& settings);

// The schemes that the settings name. Throws BadInput.
std::vector<Config> schemes_of(const ModelSettings& settings);

// The number of layers that a table shows.
inline constexpr std::size_t most_layers = 40;

struct Layer {
  std::string name;
  std::vector<std::int64_t> shape;
  Energy energy;
};

// What one scheme's encoders wrote, including all buckets and headers.
struct WireSize {
  std::string scheme;
  std::vector<std::size_t> bytes;  // by step
  std::vector<std::size_t> sent;   // by step: elements that arrived as non-zero
  // For the verdict. Its `bytes` are filled in from those above. `kept` is the squared cosine
  // between the first gradient and its decoded message: the share of the energy that is right,
  // whatever the scale.
  Candidate candidate;
};

struct Findings {
  std::vector<Layer> layers;  // in the order of forward
  Energy whole;               // all layers taken together
  Energy rest;                // all but the most_layers largest
  std::vector<WireSize> sizes;
  std::size_t buckets = 0;
  double loss = 0;     // of the last step
  ModelSettings used;  // with the defaults filled in
};

// Positions of the `count` largest layers, in order of position.
std::vector<std::size_t> largest(const std::vector<Layer>& layers, std::size_t count);

// Prints the tables and the verdict, and writes everything when --json names a file. A scheme's
// size is the mean over the second half of the steps.
void report(const Findings& findings);

// Trains and reports. Throws BadInput in a build without libtorch.
void inspect_model(const ModelSettings& settings);

}  // namespace thinwire::apps
