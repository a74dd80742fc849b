// topk.cc: gradient dropping (Aji & Heafield 2017): accumulates, sends the largest, keeps the rest.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/schemes.h"
#include "thinwire/compress/sparse.h"

namespace thinwire {
namespace {

constexpr std::uint8_t id = 4;

std::vector<Option> options() {
  std::vector<Option> all = sparse_options();
  all.push_back({"feedback", "on",
                 "Keep what is not sent (on) or drop it (off: the naive baseline, which does not "
                 "converge)."});
  return all;
}

std::unique_ptr<Compressor> make(const Options& options, const Bucket& bucket, const Site& site) {
  SparseSettings settings;
  settings.scheme = id;
  read_sparse_options(options, settings);
  settings.memory.accumulate = options.flag("feedback") ? Accumulate::residual : Accumulate::none;
  return make_sparse(settings, bucket, site);
}

}  // namespace

const Scheme& topk_scheme() {
  static const Scheme scheme{
      .name = "topk",
      .id = id,
      .paper = "Aji & Heafield 2017, Sparse communication for distributed gradient descent",
      .summary = "Sends the largest of the accumulated gradient, keeps the rest for later.",
      .bits = "15.6 * density (log4 values, density 0.001)",
      .reducible = false,
      .biased = true,
      .feedback = true,
      .stochastic = false,
      .momentum = false,
      .cuda = true,
      .options = options(),
      .variants = {"density=0.01,values=f32,select=exact",
                   "density=0.05,values=sign,index=elias_fano",
                   "density=0.1,values=f16,quota=layer", "density=1,values=f32",
                   "density=0.02,warmup=8,index=gap"},
      .bytes = nullptr,
      .traffic = 12,
      .make = make,
  };
  return scheme;
}

}  // namespace thinwire
