// settings.h: the flags of mpi_digits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "thinwire/thinwire.h"

namespace digits {

struct Settings {
  std::vector<std::string> schemes{"dense", "dgc:density=0.001,warmup=20"};
  std::string data = "data/digits.csv";
  std::uint64_t steps = 600;
  double epochs = 0;       // overrides steps unless 0
  std::uint64_t stop = 0;  // 0: at the end
  std::size_t batch = 16;
  std::size_t hidden = 300;
  double rate = 0.1;
  float decay = 1e-4f;
  std::uint64_t seed = 1;
  std::string link, json, save, resume;

  std::uint64_t steps_for(std::size_t images, std::size_t workers) const {
    if (epochs <= 0) return steps;
    const double per_step = static_cast<double>(batch * workers);
    return static_cast<std::uint64_t>(epochs * static_cast<double>(images) / per_step) + 1;
  }
};

inline void describe(CLI::App& app, Settings& settings) {
  app.add_option("--scheme", settings.schemes,
                 "schemes to compare: dense, topk:density=0.01, dgc:density=0.001,warmup=100, ...");
  app.add_option("--data", settings.data, "the digits: 64 pixels and a label per line")
      ->capture_default_str();
  auto* steps = app.add_option("--steps", settings.steps, "steps of the whole training")
                    ->check(CLI::PositiveNumber)
                    ->capture_default_str();
  app.add_option("--epochs", settings.epochs, "length of the training in passes over the data")
      ->check(CLI::PositiveNumber)
      ->excludes(steps);
  app.add_option("--stop", settings.stop, "stop after this many steps, before --steps")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch", settings.batch, "images per worker and step")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--hidden", settings.hidden, "units of each hidden layer")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--lr", settings.rate, "highest learning rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--decay", settings.decay, "weight decay")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seed", settings.seed, "seed of weights and batches")->capture_default_str();
  app.add_option("--link", settings.link,
                 "emulate a link: bandwidth and latency, as 100mbit,1ms (default: the real one)");
  app.add_option("--json", settings.json, "write the table to this file too");
  app.add_option("--save", settings.save, "save each worker's state to FILE.rankR at the end");
  app.add_option("--resume", settings.resume, "start from the state in FILE.rankR");
}

// Checks combinations of flags, and settings that thinwire itself checks.
inline void check(const Settings& settings) {
  if ((!settings.save.empty() || !settings.resume.empty()) && settings.schemes.size() != 1) {
    thinwire::fail("--save and --resume take one scheme, got ", settings.schemes.size());
  }
  if (!settings.link.empty()) thinwire::Link::parse(settings.link);
  for (const std::string& scheme : settings.schemes) {
    const auto bucket = thinwire::Bucket::single(0, "try", 1);
    thinwire::make_compressor(thinwire::Config::parse(scheme), bucket, {});
  }
}

// The exit code if the program should end here: after --help, or after a mistake, which all ranks
// see and one of them prints. Empty otherwise.
inline std::optional<int> parse(int argc, char** argv, bool speaker, Settings& settings) {
  CLI::App app("Trains a small network on handwritten digits over MPI processes, once per scheme.");
  describe(app, settings);
  try {
    app.parse(argc, argv);
    check(settings);
  } catch (const CLI::ParseError& error) {
    std::ostringstream quiet;
    return speaker ? app.exit(error) : app.exit(error, quiet, quiet);
  } catch (const thinwire::Error& error) {
    if (speaker) std::cerr << "mpi_digits: " << error.what() << "\n";
    return 2;
  }
  return std::nullopt;
}

}  // namespace digits
