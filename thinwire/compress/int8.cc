// int8.cc: sends a byte per element between the minimum and maximum of its block, through a gather.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/int8.h"

#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/coded.h"
#include "thinwire/compress/ranged.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/wire/block.h"

namespace thinwire {
namespace {

using Int8Codec = BlockCodec<Int8Rule, int8_bytes, int8_encode, int8_add>;

constexpr std::string_view rounding_names[] = {"nearest", "random"};

Int8Rule rule_of(const Options& options) {
  return {read_block_size(options, "block"), options.choice("rounding", rounding_names) == 1};
}

std::unique_ptr<Compressor> make(const Options& options, const Bucket& bucket, const Site& site) {
  const Int8Rule rule = rule_of(options);
  if (site.device.kind == Device::Kind::cuda)
    return make_coded_cuda(17, read_seed(options), read_memory_options(options),
                           int8_codec_cuda(rule, bucket.elements(), site.device), bucket, site);
  return std::make_unique<CodedCompressor>(
      std::uint8_t{17}, read_seed(options), read_memory_options(options),
      std::make_unique<Int8Codec>(rule, rule.block, bucket.elements()), bucket, site);
}

std::vector<Option> options() {
  std::vector<Option> all = {
      {"block", "256", "Elements that share a minimum and a step: a multiple of 64, up to 8192."},
      {"rounding", "nearest", "Rounding: nearest, or random (unbiased; use it with memory=none)."},
      {"seed", "1", "Seed of the random rounding."},
  };
  for (const Option& option : memory_options("residual")) all.push_back(option);
  return all;
}

}  // namespace

const Scheme& int8_scheme() {
  static const Scheme scheme = {
      .name = "int8",
      .id = 17,
      .paper = "",
      .summary = "Sends a byte per element, between the minimum and maximum of its block.",
      .bits = "8.25 (blocks of 256)",
      .reducible = false,
      .biased = true,
      .feedback = true,
      .stochastic = false,
      .momentum = false,
      .cuda = true,
      .options = options(),
      .variants = {"block=64,memory=none", "rounding=random,memory=none",
                   "block=1024,rounding=random", "memory=momentum"},
      .bytes =
          [](const Options& options, const Bucket& bucket) {
            return block_header_bytes + int8_bytes(rule_of(options), bucket.elements());
          },
      .traffic = 13.03,
      .unbiased = [](const Options& options) { return rule_of(options).random; },
      .make = make,
  };
  return scheme;
}

}  // namespace thinwire
