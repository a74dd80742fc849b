// qsgd.cc: QSGD: sends random levels of each bucket's norm, packed or entropy-coded.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/qsgd.h"

#include <cstring>

#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/coded.h"
#include "thinwire/compress/ranged.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/core/error.h"
#include "thinwire/wire/block.h"
#include "thinwire/wire/elias.h"

namespace thinwire {
namespace {

static_assert(qsgd_most <= elias_most);

using PackedCodec = BlockCodec<QsgdRule, qsgd_bytes, qsgd_encode, qsgd_add>;

constexpr std::size_t norm_bytes = sizeof(float);

// Each bucket is its norm and, unless that is 0, its levels in Elias codes. Buckets have no fixed
// place in the payload, so they are coded sequentially.
class EliasCodec final : public Codec {
 public:
  EliasCodec(const QsgdRule& rule, std::size_t elements) : rule_(rule), elements_(elements) {}

  std::size_t payload_bytes() const override {
    const std::size_t rest = elements_ % rule_.bucket;
    return elements_ / rule_.bucket * (norm_bytes + elias_bound(rule_.bucket, rule_.bits)) +
           (rest == 0 ? 0 : norm_bytes + elias_bound(rest, rule_.bits));
  }

  Coded encode(std::span<const float> gradient, std::span<float> residual, std::uint64_t seed,
               Bytes out) override {
    const DrawKey key = draw_key(seed);
    Coded coded;
    for (std::size_t at = 0; at < elements_; at += rule_.bucket) {
      const std::size_t size = std::min(rule_.bucket, elements_ - at);
      float norm = 0;
      coded.finite = qsgd_quantise(rule_, gradient.data() + at,
                                   residual.empty() ? nullptr : residual.data() + at, size, key,
                                   static_cast<std::uint32_t>(at), norm, levels_, signs_) &&
                     coded.finite;
      std::memcpy(out.data() + coded.bytes, &norm, norm_bytes);
      coded.bytes += norm_bytes;
      if (norm > 0) coded.bytes += elias_encode(levels_, signs_, size, out.subspan(coded.bytes));
    }
    return coded;
  }

  Status add(ConstBytes payload, float share, std::span<float> target) const override {
    std::uint8_t levels[qsgd_most], signs[qsgd_most / 8];
    for (std::size_t at = 0; at < elements_; at += rule_.bucket) {
      const std::size_t size = std::min(rule_.bucket, elements_ - at);
      if (payload.size() < norm_bytes)
        return {Code::truncated, "its payload ends before a bucket's norm"};
      float norm = 0;
      std::memcpy(&norm, payload.data(), norm_bytes);
      payload = payload.subspan(norm_bytes);
      if (!qsgd_norm_is_sound(norm)) return {Code::bad_value, "a norm that no encoder writes"};
      if (norm == 0) continue;
      std::size_t used = 0;
      const Status status =
          elias_decode(payload, size, (1u << rule_.bits) - 1, levels, signs, used);
      if (!status.ok()) return status;
      payload = payload.subspan(used);
      qsgd_apply(rule_, norm, levels, signs, size, share, target.data() + at);
    }
    if (!payload.empty()) return {Code::bad_value, "its payload goes on behind the last bucket"};
    return {};
  }

 private:
  QsgdRule rule_;
  std::size_t elements_;
  std::uint8_t levels_[qsgd_most], signs_[qsgd_most / 8];
};

constexpr std::string_view norm_names[] = {"l2", "max"};
constexpr std::string_view form_names[] = {"packed", "coded"};

QsgdRule rule_of(const Options& options) {
  return {read_block_size(options, "bucket"), static_cast<unsigned>(options.integer("bits", 1, 8)),
          options.choice("norm", norm_names) == 1};
}

std::unique_ptr<Compressor> make(const Options& options, const Bucket& bucket, const Site& site) {
  const QsgdRule rule = rule_of(options);
  const bool packed = options.choice("form", form_names) == 0;
  if (site.device.kind == Device::Kind::cuda) {
    return make_coded_cuda(10, read_seed(options), read_memory_options(options),
                           qsgd_codec_cuda(rule, bucket.elements(), site.device), bucket, site);
  }
  std::unique_ptr<Codec> codec;
  if (packed) {
    codec = std::make_unique<PackedCodec>(rule, rule.bucket, bucket.elements());
  } else {
    codec = std::make_unique<EliasCodec>(rule, bucket.elements());
  }
  return std::make_unique<CodedCompressor>(std::uint8_t{10}, read_seed(options),
                                           read_memory_options(options), std::move(codec), bucket,
                                           site);
}

std::vector<Option> options() {
  std::vector<Option> all = {
      {"bits", "7", "Bits of a level, 1 to 8: 2^bits - 1 levels and zero, plus a sign bit."},
      {"bucket", "512", "Elements that share a norm: a multiple of 64, up to 8192."},
      {"norm", "l2", "Norm: l2, or max (largest magnitude: less noise)."},
      {"form", "packed",
       "Code of the levels: packed (bits + 1 each) or coded (Elias codes: smaller with few bits, "
       "slower)."},
      {"seed", "1", "Seed of the random rounding."},
  };
  for (const Option& option : memory_options("none")) all.push_back(option);
  return all;
}

}  // namespace

const Scheme& qsgd_scheme() {
  static const Scheme scheme = {
      .name = "qsgd",
      .id = 10,
      .paper = "Alistarh et al. 2017, QSGD",
      .summary = "Rounds every element at random to a level of its bucket's norm.",
      .bits = "8.06 (bits + 1 + 32 / bucket)",
      .reducible = false,
      .biased = false,
      .feedback = false,
      .stochastic = true,
      .momentum = false,
      .cuda = true,
      .host = [](const Options& options) -> const char* {
        const bool packed = options.choice("form", form_names) == 0;
        return packed ? nullptr : "the codes of form=coded have no fixed place; form=packed has";
      },
      .options = options(),
      .variants = {"bits=3,norm=max", "bits=8,bucket=64", "bits=1,form=coded",
                   "bits=6,form=coded,memory=residual"},
      .bytes =
          [](const Options& options, const Bucket& bucket) {
            const bool packed = options.choice("form", form_names) == 0;
            return packed ? block_header_bytes + qsgd_bytes(rule_of(options), bucket.elements())
                          : 0;
          },
      .traffic = 5.01,
      .unbiased = nullptr,
      .make = make,
  };
  return scheme;
}

}  // namespace thinwire
