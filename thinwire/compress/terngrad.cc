// terngrad.cc: TernGrad: every element becomes -s, 0 or s at random, with one s per layer. Round 0
// finds the maximum of the workers' s, which all of them use, so that sums stay on one grid. Round
// 1 sends the signs, five per byte through a gather, or as bytes through a sum.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/coded.h"
#include "thinwire/compress/frames.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parallel.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/terngrad.h"
#include "thinwire/wire/block.h"

namespace thinwire {
namespace {

constexpr std::uint8_t scheme_id = 9;
constexpr std::size_t tile = 64 * terngrad_group;  // elements that are worked on at a time

struct Settings {
  double clip = 2.5;  // in sigmas; 0 = off
  bool by_sum = false;
  std::uint64_t seed = 1;
};

std::size_t packed_bytes(std::size_t elements) { return (elements + 4) / 5; }

class TerngradCompressor final : public Compressor {
 public:
  TerngradCompressor(const Settings& settings, const Bucket& bucket, const Site& site)
      : settings_(settings),
        bucket_(bucket),
        site_(site),
        elements_(bucket.elements()),
        who_("rank " + std::to_string(site.rank) + ", bucket " + std::to_string(bucket.id)),
        clips_(bucket.parameters.size()),
        scales_(bucket.parameters.size()) {
    const int most = settings.by_sum ? 127 : 32767;
    if (site.world > most) {
      fail("scheme 'terngrad': expected at most ", most, " workers, got ", site.world,
           "; their sums would not fit", settings.by_sum ? "; use travel=gather" : "");
    }
  }

  int rounds() const override { return 2; }

  Leg leg(std::uint64_t, int round) const override {
    if (round == 0) return {Reduction::max, DType::f32, scales_.size() * sizeof(float)};
    if (settings_.by_sum) return {Reduction::sum, DType::i8, elements_};
    return {Reduction::gather, DType::f32, block_header_bytes + packed_bytes(elements_)};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    require_f32_cpu(gradient, elements_, who_);
    const float* g = gradient.f32().data();
    if (turn.round == 0) return measure(g, out);
    const DrawKey key = draw_key(stream_seed(settings_.seed, turn.step, bucket_.id, site_.rank));
    if (settings_.by_sum) {
      quantise(g, key, reinterpret_cast<std::int8_t*>(out.data()));
      return out.size();
    }
    pack(g, key, reinterpret_cast<std::uint8_t*>(block_payload(out).data()));
    return seal_block(block_header(scheme_id, bucket_, turn.step), packed_bytes(elements_), out);
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    if (turn.round == 0) return take_scales(inbox);
    require_f32_cpu(average, elements_, who_);
    if (!settings_.by_sum) return decode_gathered(turn, inbox, average.f32().data());
    const auto* sums = reinterpret_cast<const std::int8_t*>(inbox.data.data());
    for_tiles([&](std::size_t first, std::size_t count) {
      scale(sums + first, first, count, average.f32().data());
    });
    return {};
  }

  bool learns(int round) const override { return round == 0; }  // the scales

  void undo(const Turn&) override {}
  void visit_state(StateVisitor&) override {}

 private:
  // Computes the clipping bound of each layer, and sends its largest magnitude after clipping.
  // Where a rank sends infinity all ranks skip the step.
  std::size_t measure(const float* g, Bytes out) {
    std::vector<float> scales(scales_.size());
    parallel_for(scales.size(), [&](std::size_t layer) {
      const Parameter& parameter = bucket_.parameters[layer];
      const TerngradBounds bounds = terngrad_bounds(
          settings_.clip, layer_statistics(g + parameter.offset, parameter.count), parameter.count);
      clips_[layer] = bounds.clip;
      scales[layer] = bounds.scale;
    });
    if (!scales.empty()) std::memcpy(out.data(), scales.data(), out.size());
    return out.size();
  }

  Status take_scales(const Inbox& inbox) {
    if (inbox.data.size() != scales_.size() * sizeof(float))
      return {Code::truncated, "expected one maximum per layer"};
    if (!scales_.empty()) std::memcpy(scales_.data(), inbox.data.data(), inbox.data.size());
    for (const float scale : scales_) {
      if (!std::isfinite(scale)) return {Code::skipped, "a rank's gradient was not finite"};
      if (scale < 0) return {Code::bad_value, "a layer's maximum is negative"};
    }
    return {};
  }

  template <typename Body>
  void for_tiles(const Body& body) const {
    parallel_for((elements_ + tile - 1) / tile,
                 [&](std::size_t i) { body(i * tile, std::min(tile, elements_ - i * tile)); });
  }

  // Calls body(layer, first, count) for each part of a layer in the range.
  template <typename Body>
  void for_layers(std::size_t first, std::size_t count, const Body& body) const {
    const auto& all = bucket_.parameters;
    auto at =
        std::upper_bound(all.begin(), all.end(), first,
                         [](std::size_t i, const Parameter& p) { return i < p.offset + p.count; });
    for (std::size_t i = first; i < first + count; ++at) {
      const std::size_t end = std::min(first + count, at->offset + at->count);
      if (end > i) body(static_cast<std::size_t>(at - all.begin()), i, end - i);
      i = end;
    }
  }

  // out[0] is the value of element `first`.
  void quantise_range(const float* g, DrawKey key, std::size_t first, std::size_t count,
                      std::int8_t* out) const {
    for_layers(first, count, [&](std::size_t layer, std::size_t from, std::size_t part) {
      terngrad_quantise(g + from, part, scales_[layer], clips_[layer], key,
                        static_cast<std::uint32_t>(from), out + (from - first));
    });
  }

  void quantise(const float* g, DrawKey key, std::int8_t* out) const {
    for_tiles([&](std::size_t first, std::size_t count) {
      quantise_range(g, key, first, count, out + first);
    });
  }

  // The layer that contains the whole range. If none does, the number of layers.
  std::size_t layer_around(std::size_t first, std::size_t count) const {
    std::size_t layer = 0, parts = 0;
    for_layers(first, count, [&](std::size_t at, std::size_t, std::size_t) {
      layer = at;
      ++parts;
    });
    return parts == 1 ? layer : scales_.size();
  }

  void pack(const float* g, DrawKey key, std::uint8_t* out) const {
    for_tiles([&](std::size_t first, std::size_t count) {
      const std::size_t layer = layer_around(first, count);
      std::size_t done = 0;
      if (layer < scales_.size()) {
        done = count - count % terngrad_group;
        terngrad_encode(g + first, done, scales_[layer], clips_[layer], key,
                        static_cast<std::uint32_t>(first), out + packed_bytes(first));
      }
      std::int8_t values[tile];
      quantise_range(g, key, first + done, count - done, values);
      terngrad_pack(values, count - done, out + packed_bytes(first + done));
    });
  }

  // sums[0] is the sum of element `first`.
  template <typename Integer>
  void scale(const Integer* sums, std::size_t first, std::size_t count, float* average) const {
    for_layers(first, count, [&](std::size_t layer, std::size_t from, std::size_t part) {
      terngrad_scale(sums + (from - first), part, scales_[layer] / static_cast<float>(site_.world),
                     average + from);
    });
  }

  Status decode_gathered(const Turn& turn, const Inbox& inbox, float* average) const {
    std::vector<ConstBytes> payloads;
    const FrameHeader expected = block_header(scheme_id, bucket_, turn.step);
    if (const Status opened = open_blocks(inbox, site_.world, expected, payloads); !opened.ok())
      return opened;
    for (int rank = 0; rank < site_.world; ++rank) {
      inbox.culprit = rank;
      if (payloads[static_cast<std::size_t>(rank)].size() != packed_bytes(elements_))
        return {Code::mismatch, "its frame is not as long as the bucket asks"};
    }
    std::atomic<int> worst = -1;
    for_tiles([&](std::size_t first, std::size_t count) {
      std::int16_t sums[tile];
      std::fill_n(sums, count, std::int16_t{0});
      for (int rank = 0; rank < site_.world; ++rank) {
        const auto* in =
            reinterpret_cast<const std::uint8_t*>(payloads[static_cast<std::size_t>(rank)].data());
        if (!terngrad_add(in + packed_bytes(first), count, sums)) worst = rank;
      }
      scale(sums, first, count, average);
    });
    inbox.culprit = worst;
    if (worst < 0) return {};
    return {Code::bad_value, "a byte that is not five values of three"};
  }

  Settings settings_;
  Bucket bucket_;
  Site site_;
  std::size_t elements_;
  std::string who_;
  std::vector<float> clips_;   // this rank's clipping bounds, from round 0 to round 1
  std::vector<float> scales_;  // s of each layer, shared by all ranks
};

constexpr std::string_view travel_names[] = {"gather", "sum"};

Settings read(const Options& options) {
  return {options.number_from("clip", 0, 1e6), options.choice("travel", travel_names) == 1,
          read_seed(options)};
}

std::unique_ptr<Compressor> make(const Options& options, const Bucket& bucket, const Site& site) {
  const Settings settings = read(options);
  if (site.device.kind == Device::Kind::cuda)
    return make_terngrad_cuda(settings.clip, settings.by_sum, settings.seed, bucket, site);
  return std::make_unique<TerngradCompressor>(settings, bucket, site);
}

}  // namespace

const Scheme& terngrad_scheme() {
  static const Scheme scheme = {
      .name = "terngrad",
      .id = scheme_id,
      .paper = "Wen et al. 2017, TernGrad",
      .summary = "Every element becomes minus, zero or plus its layer's largest, at random.",
      .bits = "1.6",
      .reducible = false,
      .biased = true,  // by clipping; right on average without
      .feedback = false,
      .stochastic = true,
      .momentum = false,
      .cuda = true,
      .options =
          {
              {"clip", "2.5",
               "Clip magnitudes to this many standard deviations of their layer; 0: no clipping."},
              {"travel", "gather",
               "Collective: gather (1.6 bits, grows with the workers) or sum (8 bits, does not; up "
               "to 127 workers)."},
              {"seed", "1", "Seed of the random choices."},
          },
      .variants = {"clip=0", "clip=0,travel=sum", "travel=sum"},
      .bytes =
          [](const Options& options, const Bucket& bucket) {
            const std::size_t n = bucket.elements();
            return bucket.parameters.size() * sizeof(float) +
                   (read(options).by_sum ? n : block_header_bytes + packed_bytes(n));
          },
      .traffic = 8.2,
      .unbiased = [](const Options& options) { return read(options).clip == 0; },
      .make = make,
  };
  return scheme;
}

}  // namespace thinwire
