// threshold.cc: threshold quantisation (Strom 2015): accumulates, and sends one quantum of every
// element that has reached tau.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/coded.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/compress/threshold_codec.h"

namespace thinwire {
namespace {

constexpr std::uint8_t id = 8;
constexpr std::string_view quota_names[] = {"bucket", "layer"};

std::vector<Option> options() {
  std::vector<Option> all = memory_options("residual");
  all.push_back(
      {"tau", "0", "Threshold and quantum, in [0, 1e30). 0: steered to reach the density."});
  all.push_back(
      {"density", "0.01", "With tau=0: fraction of the elements that send a quantum, in (0, 1]."});
  all.push_back({"quota", "layer", "With tau=0: use one threshold per bucket or per layer."});
  return all;
}

std::unique_ptr<Compressor> make(const Options& options, const Bucket& bucket, const Site& site) {
  ThresholdSettings settings;
  settings.tau = options.number_from("tau", 0, 1e30);
  settings.density = options.number("density", 0, 1);
  settings.per_layer = options.choice("quota", quota_names) == 1;
  const MemoryRule memory = read_memory_options(options);
  if (site.device.kind == Device::Kind::cuda) {
    const bool keeps = site.sends && has_residual(memory.accumulate);
    return make_coded_cuda(
        id, 0, memory,
        threshold_codec_cuda(settings, bucket, site.world, site.sends, keeps, site.device), bucket,
        site);
  }
  return std::make_unique<CodedCompressor>(
      id, 0, memory, std::make_unique<ThresholdCodec>(settings, bucket), bucket, site);
}

}  // namespace

const Scheme& threshold_scheme() {
  static const Scheme scheme{
      .name = "threshold",
      .id = id,
      .paper = "Strom 2015, Scalable distributed DNN training using commodity GPU cloud computing",
      .summary = "Sends one quantum of each element that reached the threshold, keeps the rest.",
      .bits = "9.3 * density (density 0.01), at most 2",
      .reducible = false,
      .biased = true,
      .feedback = true,
      .stochastic = false,
      .momentum = false,
      .cuda = true,
      .options = options(),
      .variants = {"tau=4", "density=0.05,quota=bucket", "memory=momentum",
                   "density=0.6,memory=none"},
      .bytes = nullptr,
      .traffic = 12.25,
      .make = make,
  };
  return scheme;
}

}  // namespace thinwire
