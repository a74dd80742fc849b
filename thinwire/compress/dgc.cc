// dgc.cc: Deep Gradient Compression (Lin et al. 2018): momentum correction, local clipping, factor
// masking, warm-up.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/memory_options.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/compress/sparse.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

constexpr std::uint8_t id = 5;
constexpr std::string_view norm_names[] = {"global", "bucket"};
constexpr std::string_view mask_names[] = {"auto", "pool", "off", "on"};

std::vector<Option> options() {
  std::vector<Option> all = sparse_options();
  for (const Option& option : momentum_options()) all.push_back(option);
  all.push_back({"mask", "auto",
                 "Momentum of elements: pool (a sent element takes the share along that its wait "
                 "has made due), off (it keeps all of it), on (it loses all of it: factor masking, "
                 "as in the paper), or auto (pool; with nesterov=on off)."});
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
  const auto mask = mask_names[options.choice("mask", mask_names)];
  if (mask == "pool" && rule.accumulate == Accumulate::nesterov)
    fail("dgc: mask=pool has no Nesterov form: give mask=off or mask=on with nesterov=on");
  if ((mask == "auto" || mask == "pool") && settings.memory.accumulate == Accumulate::momentum)
    settings.memory.accumulate = Accumulate::pool;
  settings.memory.mask = mask == "on";
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
          "Sends the largest of the accumulated gradient and momentum, keeps the rest for later.",
      .bits = "15.6 * density (log4 values, density 0.001)",
      .reducible = false,
      .biased = true,
      .feedback = true,
      .stochastic = false,
      .momentum = true,
      .cuda = true,
      .options = options(),
      .variants = {"density=0.01,values=f32,select=exact,nesterov=on",
                   "density=0.05,values=sign,clip=0.5,mask=on",
                   "density=0.1,values=bf16,quota=layer,clip=1,clip_norm=bucket",
                   "density=0.02,warmup=8,values=log8,mask=off"},
      .bytes = nullptr,
      .traffic = 20,
      .make = make,
  };
  return scheme;
}

}  // namespace thinwire
