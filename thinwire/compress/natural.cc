// natural.cc: natural compression: sends sign and exponent after stochastic rounding, 9 bits.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/natural.h"

#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/coded.h"
#include "thinwire/compress/ranged.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/kernels/levels.h"
#include "thinwire/wire/block.h"

namespace thinwire {
namespace {

constexpr std::size_t grain = 64;

class NaturalCodec final : public RangedCodec {
 public:
  explicit NaturalCodec(std::size_t elements) : RangedCodec(elements, grain), elements_(elements) {}

  std::size_t payload_bytes() const override { return elements_ + level_bytes(elements_, 1); }

 protected:
  bool encode_range(Range range, const float* gradient, float* residual, DrawKey key,
                    std::uint8_t* payload) const override {
    return natural_encode(gradient + range.first,
                          residual == nullptr ? nullptr : residual + range.first, range.count, key,
                          static_cast<std::uint32_t>(range.first), payload + range.first,
                          payload + elements_ + range.first / 8);
  }

  bool add_range(Range range, const std::uint8_t* payload, float share,
                 float* target) const override {
    return natural_add(payload + range.first, payload + elements_ + range.first / 8, range.count,
                       share, target + range.first);
  }

 private:
  std::size_t elements_;
};

std::unique_ptr<Compressor> make(const Options& options, const Bucket& bucket, const Site& site) {
  if (site.device.kind == Device::Kind::cuda)
    return make_coded_cuda(16, read_seed(options), read_memory_options(options),
                           natural_codec_cuda(bucket.elements(), site.device), bucket, site);
  return std::make_unique<CodedCompressor>(
      std::uint8_t{16}, read_seed(options), read_memory_options(options),
      std::make_unique<NaturalCodec>(bucket.elements()), bucket, site);
}

std::vector<Option> options() {
  std::vector<Option> all = {{"seed", "1", "Seed of the random rounding."}};
  for (const Option& option : memory_options("none")) all.push_back(option);
  return all;
}

}  // namespace

const Scheme& natural_scheme() {
  static const Scheme scheme = {
      .name = "natural",
      .id = 16,
      .paper = "Horvath et al. 2019, Natural compression for distributed deep learning",
      .summary = "Rounds every element at random to a power of two, and sends sign and exponent.",
      .bits = "9",
      .reducible = false,
      .biased = false,
      .feedback = false,
      .stochastic = true,
      .momentum = false,
      .cuda = true,
      .options = options(),
      .variants = {"memory=residual", "memory=momentum,nesterov=on"},
      .bytes =
          [](const Options&, const Bucket& bucket) {
            return block_header_bytes + bucket.elements() + level_bytes(bucket.elements(), 1);
          },
      .traffic = 5.125,
      .unbiased = nullptr,
      .make = make,
  };
  return scheme;
}

}  // namespace thinwire
