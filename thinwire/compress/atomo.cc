// atomo.cc: spectral ATOMO (Wang et al. 2018): sends each singular triplet of a layer with a
// probability proportional to its strength, and divides it by that probability, so it is unbiased.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/atomo.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "thinwire/compress/coded.h"
#include "thinwire/compress/matrix.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/compress/spectrum.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {
namespace {

constexpr std::uint8_t id = 14;

// Limits of the sum of a layer's scales, when written and when read (after rounding). With |u|, |v|
// <= 1 the sum of the triplets then does not overflow f32.
constexpr double most_scale = 0x1p127, most_read = most_scale * (1 + 0x1p-20);

// Instead of a number of triplets: the whole matrix follows.
constexpr std::uint32_t whole = 0xffffffff;

// A parameter. It is sent as triplets, unless they would have as many floats as the parameter.
struct Layer {
  std::size_t offset = 0, count = 0;
  MatrixShape shape;  // rows = 0: the parameter is sent uncompressed

  std::size_t triplet() const { return 1 + shape.rows + shape.cols; }
  bool pays(std::size_t triplets) const { return triplets < (count + triplet() - 1) / triplet(); }
  std::size_t most_bytes() const { return (shape.rows ? 4 : 0) + count * sizeof(float); }
};

std::vector<Layer> layers_of(const Bucket& bucket) {
  std::vector<Layer> layers;
  for (const Parameter& parameter : bucket.parameters) {
    Layer layer{parameter.offset, parameter.count, matrix_shape(parameter)};
    if (!layer.pays(1)) layer.shape = {};
    layers.push_back(layer);
  }
  return layers;
}

// A number in [0, 1) with 53 random bits.
double chance_at(std::uint64_t seed, std::size_t counter) {
  return static_cast<double>(random_at(seed, counter) >> 11) * 0x1p-53;
}

class Writer {
 public:
  explicit Writer(Bytes out) : out_(out) {}
  void raw(const void* data, std::size_t size) {
    if (size > 0) std::memcpy(out_.data() + used_, data, size);
    used_ += size;
  }
  void floats(std::span<const float> values) { raw(values.data(), values.size_bytes()); }
  void number(std::uint32_t value) { raw(&value, sizeof value); }
  std::size_t used() const { return used_; }

 private:
  Bytes out_;
  std::size_t used_ = 0;
};

class Reader {
 public:
  explicit Reader(ConstBytes bytes) : rest_(bytes) {}

  bool number(std::uint32_t& value) {
    if (rest_.size() < sizeof value) return false;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_ = rest_.subspan(sizeof value);
    return true;
  }
  // Reads out.size() floats. Returns false when there are fewer.
  bool floats(std::span<float> out) {
    if (rest_.size() / sizeof(float) < out.size()) return false;
    if (!out.empty()) std::memcpy(out.data(), rest_.data(), out.size_bytes());
    rest_ = rest_.subspan(out.size_bytes());
    return true;
  }
  bool done() const { return rest_.empty(); }

 private:
  ConstBytes rest_;
};

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// Whether a triplet is a scale followed by unit vectors. NaN fails both checks.
bool is_sound(std::span<const float> triplet) {
  return triplet[0] >= 0 &&
         std::all_of(triplet.begin() + 1, triplet.end(), [](float x) { return std::fabs(x) <= 1; });
}

class AtomoCodec final : public Codec {
 public:
  AtomoCodec(double budget, const Bucket& bucket) : budget_(budget), layers_(layers_of(bucket)) {}

  std::size_t payload_bytes() const override {
    std::size_t bytes = 0;
    for (const Layer& layer : layers_) bytes += layer.most_bytes();
    return bytes;
  }

  Coded encode(std::span<const float> gradient, std::span<float> residual, std::uint64_t seed,
               Bytes out) override {
    Writer writer(out);
    Coded coded;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      std::vector<float> x(
          gradient.begin() + static_cast<std::ptrdiff_t>(layer.offset),
          gradient.begin() + static_cast<std::ptrdiff_t>(layer.offset + layer.count));
      const auto kept = residual.empty() ? residual : residual.subspan(layer.offset, layer.count);
      for (std::size_t j = 0; j < kept.size(); ++j) x[j] += kept[j];
      const bool within = all_within_limit(gradient.data() + layer.offset, layer.count);
      if (!within) std::fill(x.begin(), x.end(), 0.0f);
      const std::size_t begin = writer.used();
      const bool sound = write_layer(layer, x, !kept.empty(), random_at(seed, i), writer);
      coded.finite = coded.finite && within && sound;
      if (kept.empty()) continue;
      if (!within) {
        add_within_limit(gradient.data() + layer.offset, kept.data(), kept.size());
        continue;
      }
      std::vector<float> sent(layer.count);
      Reader reader(ConstBytes(out).first(writer.used()).subspan(begin));
      coded.finite = add_layer(layer, reader, 1.0f, sent).ok() && coded.finite;
      for (std::size_t j = 0; j < kept.size(); ++j) kept[j] = x[j] - sent[j];
    }
    coded.bytes = writer.used();
    return coded;
  }

  Status add(ConstBytes payload, float share, std::span<float> target) const override {
    Reader reader(payload);
    for (const Layer& layer : layers_) {
      const auto part = target.subspan(layer.offset, layer.count);
      if (const Status status = add_layer(layer, reader, share, part); !status.ok()) return status;
    }
    if (!reader.done()) return {Code::mismatch, "bytes behind the last layer"};
    return {};
  }

 private:
  // Returns false when a number overflows f32; the layer is then sent as zeros.
  bool write_layer(const Layer& layer, std::span<const float> x, bool feedback, std::uint64_t seed,
                   Writer& writer) const {
    if (layer.shape.rows == 0) {
      writer.floats(x);
      return true;
    }
    const Spectrum spectrum(x, layer.shape.rows, layer.shape.cols);
    std::vector<double> strengths;
    for (std::size_t i = 0; i < spectrum.parts(); ++i) strengths.push_back(spectrum.strength(i));
    const std::vector<double> chances = atomo_chances(strengths, budget_);
    std::vector<float> triplets, triplet(layer.triplet());
    std::uint32_t count = 0;
    double scales = 0;
    for (std::size_t i = 0; i < spectrum.parts(); ++i) {
      if (chance_at(seed, i) >= chances[i]) continue;
      const double length =
          spectrum.write(i, triplet.data() + 1, triplet.data() + 1 + layer.shape.rows);
      if (length == 0) continue;
      // With a residual the rest follows later; scaling up as well would make the residual grow.
      const double scale = feedback ? length : length / chances[i];
      scales += scale;
      if (!(scales <= most_scale)) {
        writer.number(0);
        return false;
      }
      triplet[0] = static_cast<float>(scale);
      triplets.insert(triplets.end(), triplet.begin(), triplet.end());
      ++count;
    }
    write_triplets(layer, count, triplets, writer);
    return true;
  }

  // Sends the whole matrix where that is smaller. It is the sum of the drawn triplets, because
  // sending the gradient itself only for large draws would be a bias. The limit of their scales
  // keeps it finite.
  static void write_triplets(const Layer& layer, std::uint32_t count,
                             std::span<const float> triplets, Writer& writer) {
    if (layer.pays(count)) {
      writer.number(count);
      writer.floats(triplets);
      return;
    }
    std::vector<float> sum(layer.count);
    for (std::uint32_t i = 0; i < count; ++i)
      add_triplet(layer, triplets.subspan(i * layer.triplet(), layer.triplet()), 1.0f, sum);
    writer.number(whole);
    writer.floats(sum);
  }

  static void add_triplet(const Layer& layer, std::span<const float> triplet, float share,
                          std::span<float> target) {
    const float* u = triplet.data() + 1;
    const float* v = u + layer.shape.rows;
    for (std::size_t i = 0; i < layer.shape.rows; ++i) {
      const float factor = share * triplet[0] * u[i];
      float* row = target.data() + i * layer.shape.cols;
      for (std::size_t j = 0; j < layer.shape.cols; ++j) row[j] += factor * v[j];
    }
  }

  static Status add_layer(const Layer& layer, Reader& reader, float share,
                          std::span<float> target) {
    std::uint32_t count = whole;
    if (layer.shape.rows != 0 && !reader.number(count))
      return {Code::truncated, "payload ends before a layer's number of triplets"};
    if (count == whole) return add_whole(layer, reader, share, target);
    if (!layer.pays(count)) return {Code::bad_value, "more triplets than the layer has room for"};
    std::vector<float> triplet(layer.triplet());
    double scales = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (!reader.floats(triplet)) return {Code::truncated, "payload ends inside a triplet"};
      scales += static_cast<double>(triplet[0]);
      if (!is_sound(triplet) || !(scales <= most_read))
        return {Code::bad_value, "a triplet that no encoder writes"};
      add_triplet(layer, triplet, share, target);
    }
    return {};
  }

  static Status add_whole(const Layer& layer, Reader& reader, float share,
                          std::span<float> target) {
    std::vector<float> values(layer.count);
    if (!reader.floats(values)) return {Code::truncated, "payload ends inside a layer"};
    if (!all_finite(values)) return {Code::bad_value, "an element that is not finite"};
    for (std::size_t i = 0; i < values.size(); ++i) target[i] += share * values[i];
    return {};
  }

  double budget_;
  std::vector<Layer> layers_;
};

std::vector<Option> options() {
  std::vector<Option> all = {
      {"rank", "3", "Expected number of triplets sent per layer, in (0, 1000]."},
      {"seed", "0", "Seed of the random draws."}};
  for (Option& option : memory_options("none")) all.push_back(std::move(option));
  return all;
}

}  // namespace

std::vector<double> atomo_chances(std::span<const double> strengths, double budget) {
  std::vector<double> rest(strengths.size() + 1);  // rest[i] = sum of the strengths from i on
  for (std::size_t i = strengths.size(); i-- > 0;) rest[i] = rest[i + 1] + strengths[i];
  std::vector<double> chances(strengths.size());
  std::size_t i = 0;
  // Parts too strong for their share are always sent, and the others share the rest of the budget.
  for (; i < strengths.size() && strengths[i] * budget > rest[i]; ++i, budget -= 1) chances[i] = 1;
  for (std::size_t k = i; k < strengths.size(); ++k)
    chances[k] = rest[i] > 0 ? std::min(1.0, strengths[k] * budget / rest[i]) : 0;
  return chances;
}

std::unique_ptr<Codec> make_atomo_codec(double budget, const Bucket& bucket) {
  return std::make_unique<AtomoCodec>(budget, bucket);
}

const Scheme& atomo_scheme() {
  static const Scheme scheme{
      .name = "atomo",
      .id = id,
      .paper =
          "Wang et al. 2018, ATOMO: communication-efficient learning via atomic sparsification",
      .summary = "Sends a few singular triplets of each layer, drawn by their strength.",
      .bits = "32 * rank * (1/rows + 1/columns), in expectation",
      .reducible = false,
      .biased = false,
      .feedback = false,
      .stochastic = true,
      .momentum = false,
      .host =
          [](const Options&) {
            return "it decomposes every layer in every step, which takes longer than a dense step";
          },
      .options = options(),
      .variants = {"rank=1,memory=residual"},
      .bytes = nullptr,
      .traffic = 4,
      .make = [](const Options& options, const Bucket& bucket,
                 const Site& site) -> std::unique_ptr<Compressor> {
        return std::make_unique<CodedCompressor>(
            id, static_cast<std::uint64_t>(options.integer("seed", 0, 1L << 40)),
            read_memory_options(options), make_atomo_codec(options.number("rank", 0, 1000), bucket),
            bucket, site);
      },
  };
  return scheme;
}

}  // namespace thinwire
