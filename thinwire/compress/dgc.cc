// dgc.cc: Deep Gradient Compression (Lin et al. 2018): momentum correction, local clipping, factor
// masking, warm-up.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/memory_options.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/compress/sparse.h"

namespace thinwire {
namespace {

constexpr std::uint8_t id = 5;
constexpr std::string_view norm_names[] = {"global", "bucket"};

std::vector<Option> options() {
  std::vector<Option> all = sparse_options();
  for (const Option& option : momentum_options()) all.push_back(option);
  all.push_back(
      {"mask", "on", "Factor masking: sent elements lose their momentum. Off is for comparison."});
  all.push_back({"clip", "0",
                 "Largest norm of the gradient; each of N workers clips at 1/sqrt(N) of it. 0: no "
                 "clipping."});
  all.push_back({"clip_norm", "global",
                 "Norm to clip by: global (waits for all buckets) or bucket (an approximation)."});
  return all;
}

std::unique_ptr<Compressor> make(const Options& options, const Bucket& bucket, const Site& site) {
  SparseSettings settings;
  settings.scheme = id;
  read_sparse_options(options, settings);
  const MemoryRule rule = read_momentum_options(options);
  settings.memory.momentum = rule.momentum;
  // With a factor of 0, u would equal the gradient: plain gradient dropping needs no u.
  settings.memory.accumulate = rule.momentum == 0 ? Accumulate::residual : rule.accumulate;
  settings.memory.mask = options.flag("mask");
  settings.clip = options.number_from("clip", 0, 1e30);
  settings.clip_global = options.choice("clip_norm", norm_names) == 0;
  return make_sparse(settings, bucket, site);
}

}  // namespace

const Scheme& dgc_scheme() {
  static const Scheme scheme{
      .name = "dgc",
      .id = id,
      .paper = "Lin et al. 2018, Deep Gradient Compression",
      .summary =
          "Sends the largest of the accumulated momentum, keeps the rest: dense accuracy at 99.9 % "
          "sparsity.",
      .bits = "15.6 * density (log4 values, density 0.001)",
      .reducible = false,
      .biased = true,
      .feedback = true,
      .stochastic = false,
      .momentum = true,
      .cuda = true,
      .options = options(),
      .variants = {"density=0.01,values=f32,select=exact,nesterov=on",
                   "density=0.05,values=sign,clip=0.5",
                   "density=0.1,values=bf16,quota=layer,clip=1,clip_norm=bucket",
                   "density=0.02,warmup=8,values=log8,mask=off"},
      .bytes = nullptr,
      .traffic = 20,
      .make = make,
  };
  return scheme;
}

}  // namespace thinwire
