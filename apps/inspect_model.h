// inspect_model.h: the half of `thinwire inspect` that looks at a model's gradients: how
// concentrated they are, and how small each scheme makes them. No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/energy.h"
#include "apps/table.h"
#include "thinwire/core/options.h"

namespace thinwire::apps {

struct ModelSettings {
  std::string model;  // empty: no model is inspected
  std::string data = "digits";
  std::string schemes;  // empty: all of the registry
  std::uint64_t steps = 20;
  std::int64_t batch = 32;
  std::int64_t sequence = 32;
  std::uint64_t seed = 1;
  double rate = 0.1;
  double bucket_mb = 4;
  int threads = 0;  // 0: torch decides
  std::string json;
};

// Adds the flags, all of which need --model.
void describe(CLI::App& verb, ModelSettings& settings);

// The schemes that the settings name. Throws BadInput.
std::vector<Config> schemes_of(const ModelSettings& settings);

// A table shows this many layers.
inline constexpr std::size_t most_layers = 40;

struct Layer {
  std::string name;
  std::vector<std::int64_t> shape;
  Energy energy;
};

// What one scheme's encoders wrote, all buckets and headers counted.
struct WireSize {
  std::string scheme;
  std::vector<std::size_t> bytes;  // by step
  std::vector<std::size_t> sent;   // by step: elements that arrived as something else than zero
};

struct Findings {
  std::vector<Layer> layers;  // in the order of forward
  Energy whole;               // all of them taken as one
  Energy rest;                // all but the most_layers largest
  std::vector<WireSize> sizes;
  std::size_t buckets = 0;
  double loss = 0;  // of the last step
};

// Positions of the `count` largest layers, in order of position.
std::vector<std::size_t> largest(const std::vector<Layer>& layers, std::size_t count);

// Prints the tables; writes everything when --json names a file. A scheme's size is the mean over
// the second half of the steps.
void report(const ModelSettings& settings, const Findings& findings);

// Trains and reports. In a build without libtorch: throws BadInput.
void inspect_model(const ModelSettings& settings);

}  // namespace thinwire::apps
