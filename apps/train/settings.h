// settings.h: the flags of `thinwire train`, read and checked. No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/data_partition.h"
#include "apps/train/schedule.h"
#include "thinwire/comm/link.h"
#include "thinwire/core/options.h"
#include "thinwire/delay/options.h"
#include "thinwire/exchange/kind.h"

namespace thinwire::train {

enum class Engine { gloo, mpi, nccl };

struct Settings {
  std::string model = "mlp";
  std::string data = "digits";
  std::string partition = "iid";
  int workers = 0;          // 0: as many as the job has, otherwise 1
  int virtual_workers = 0;  // 0: workers are processes
  std::string scheme = "dense";
  std::string exchange = "auto";
  std::string delay, correction;  // empty: not given
  std::uint64_t local_steps = 0;  // 0: not given

  std::uint64_t steps = 0;  // 0: by epochs
  double epochs = 5;
  std::uint64_t stop = 0;  // 0: at the end
  std::int64_t batch = 32;
  std::int64_t sequence = 32;
  std::uint64_t accumulate = 1;
  std::string precision = "f32";
  std::uint64_t seed = 1;

  std::string optimizer = "sgd";
  double rate = 0;                 // 0: 0.1, or 0.001 for adam and adamw
  std::optional<double> momentum;  // 0.9, or the scheme's default
  bool nesterov = false;
  std::optional<double> beta1, beta2, epsilon;  // defaults: those of AdamRule
  double decay = 0;
  double clip = 0;
  std::string schedule = "constant";
  std::uint64_t rate_warmup = 0;

  double bucket_mb = 4;
  double fuse_mb = 0;
  std::string link;
  std::string engine;  // empty: not given
  std::string device = "cpu";
  double timeout = 60;
  int threads = 0;  // 0: torch's default, or 1 beside other workers on this machine

  std::string save, resume;
  std::uint64_t save_every = 0;
  std::uint64_t check_every = 100;
  std::uint64_t eval_every = 0;
  std::uint64_t report_every = 0;  // 0: about 20 rows
  std::string json, trace;
  std::string nan_at;    // "STEP,RANK", for tests
  bool streams = false;  // for tests: what works in streams on a GPU does so on the CPU too

  // Valid after check().
  Config config;                        // the scheme, with momentum and clipping filled in
  ExchangeKind meeting;                 // --exchange: how the scheme's output is exchanged
  std::optional<DelayOptions> delayed;  // instead of averaging gradients in every step
  Partition shares;                     // --partition: which worker has which training examples
  Schedule rates;
  std::optional<Link> emulated;
  Engine kind = Engine::gloo;
  bool cuda = false;
  bool bf16 = false;
  bool clip_average = false;  // the scheme does not clip, so the trainer clips the average
  std::optional<std::pair<std::uint64_t, int>> fault;

  // Virtual workers of delayed averaging have weights of their own. Each is a thread.
  bool in_threads() const { return virtual_workers > 0 && delayed; }

  // Workers and servers to start on this machine.
  int processes() const { return virtual_workers > 0 ? 1 : std::max(1, workers) + meeting.servers; }

  // The flags and values that a checkpoint and the run that resumes it must share.
  std::vector<std::pair<std::string, std::string>> identity(int world) const;
};

// Adds the flags to the verb: all of them, or those that affect the cost of a step.
void describe(CLI::App& verb, Settings& settings);
void describe_step(CLI::App& verb, Settings& settings);

// Checks combinations of flags, and fills in defaults. Throws BadInput.
void check(Settings& settings);

}  // namespace thinwire::train
