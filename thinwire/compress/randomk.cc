// randomk.cc: sends a random choice of blocks, which all workers draw from a common seed in each
// step. So no indices travel, and the values can be summed. The blocks of the bucket are divided
// into k strata of equal length (up to one), and one block of each is sent: exactly k blocks
// without replacement, in order, found in O(k). Each draw depends only on (seed, step, bucket,
// stratum).
//
//     none                 sends g_i times the length of its stratum: unbiased, but noisy
//     residual, momentum   keeps what is not sent; no factor
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/randomk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "thinwire/compress/memory_options.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/memory/csc.h"
#include "thinwire/memory/strata.h"

namespace thinwire {
namespace {

// About the elements per call of the pass: they stay in the cache while sent blocks are cleared.
constexpr std::size_t piece_elements = 4096;

RandomkSettings read(const Options& options) {
  RandomkSettings settings;
  settings.density = options.number("density", 0, 1);
  settings.block = static_cast<std::size_t>(options.integer("block", 1, 1L << 30));
  settings.seed =
      static_cast<std::uint64_t>(options.integer("seed", 0, std::numeric_limits<int>::max()));
  settings.rule = read_memory_options(options);
  return settings;
}

class RandomkCompressor final : public Compressor {
 public:
  RandomkCompressor(const RandomkSettings& settings, const Bucket& bucket, const Site& site)
      : settings_(settings),
        bucket_(bucket),
        grid_{bucket.elements(), settings.block},
        values_{DType::f32, site.world},
        who_("rank " + std::to_string(site.rank) + ", bucket " + std::to_string(bucket.id)),
        memory_(bucket, grid_, settings.rule, values_),
        picks_(grid_.share(settings.density)),
        strata_{grid_.count(), picks_.size()},
        received_(grid_.packed(picks_.size())) {}

  Leg leg(std::uint64_t, int) const override {
    return {Reduction::sum, DType::f32, values_.bytes(received_.size())};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    require_f32_cpu(gradient, bucket_.elements(), who_);
    const std::size_t blocks = std::max<std::size_t>(1, piece_elements / grid_.chunk);
    memory_.take_in(gradient.f32(), blocks * grid_.chunk, sums_);
    draw(turn.step);
    if (settings_.rule.accumulate == Accumulate::none) {
      send_scaled(gradient.f32(), out);
    } else {
      memory_.send(picks_, Velocity::mask, out);
    }
    // One NaN is enough, wherever the bad element was: every rank sees it in the sum.
    if (!all_finite(sums_)) {
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(out.data(), &nan, sizeof nan);
    }
    return out.size();
  }

  std::optional<bool> sound() const override { return all_finite(sums_); }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    require_f32_cpu(average, bucket_.elements(), who_);
    draw(turn.step);  // later steps may have been encoded meanwhile
    if (!values_.read(inbox.data, received_))
      return {Code::skipped, "a rank's gradient was not finite"};
    grid_.scatter(received_.data(), picks_, average.f32().data());
    return {};
  }

  bool learns(int) const override { return false; }
  void undo(const Turn&) override { memory_.undo(); }
  void forget(const Turn& turn, TensorView gradient) override {
    undo(turn);
    memory_.forget(gradient.f32());
  }
  void visit_state(StateVisitor& visitor) override { memory_.visit_state(visitor); }

 private:
  void draw(std::uint64_t step) {
    if (drawn_ == step) return;
    drawn_ = step;
    const std::uint64_t stream = settings_.stream(step, bucket_);
    for (std::size_t i = 0; i < picks_.size(); ++i) picks_[i] = strata_.pick(stream, i);
  }

  void send_scaled(std::span<const float> gradient, Bytes out) {
    grid_.gather(gradient.data(), picks_, received_.data());
    float* value = received_.data();
    for (std::size_t i = 0; i < picks_.size(); ++i) {
      const auto factor = static_cast<float>(strata_.length(i));
      for (float* const end = value + grid_.size(picks_[i]); value < end; ++value) *value *= factor;
    }
    values_.write(received_, out);
  }

  RandomkSettings settings_;
  Bucket bucket_;
  CscGrid grid_;
  SummedValues values_;
  std::string who_;  // "rank 1, bucket 3", for errors
  CscMemory memory_;
  std::vector<double> sums_;
  std::optional<std::uint64_t> drawn_;
  std::vector<std::uint32_t> picks_;  // of that step
  Strata strata_;
  std::vector<float> received_;  // values of the step, as they travel
};

std::vector<Option> options() {
  std::vector<Option> all = {
      {"density", "0.25", "Fraction of the blocks sent, in (0, 1]."},
      {"block", "1", "Elements per block. Longer blocks are faster and coarser."},
      {"seed", "0", "Seed of the choice; the same on all workers."},
  };
  for (Option& option : memory_options("none")) all.push_back(std::move(option));
  return all;
}

}  // namespace

const Scheme& randomk_scheme() {
  static const Scheme scheme{
      .name = "randomk",
      .id = 15,
      .paper = "Stich et al. 2018, Sparsified SGD with memory",
      .summary =
          "Sends a random choice that all workers share, through an all-reduce. With a memory it "
          "is biased.",
      .bits = "32 * density",
      .reducible = true,
      .biased = false,
      .feedback = false,
      .stochastic = true,
      .momentum = false,
      .cuda = true,
      .options = options(),
      .variants = {"density=0.1,memory=momentum", "density=0.05,block=16,seed=3",
                   "density=0.1,block=5,memory=residual",
                   "density=0.05,memory=momentum,nesterov=on"},
      .bytes =
          [](const Options& options, const Bucket& bucket) {
            const RandomkSettings settings = read(options);
            const CscGrid grid{bucket.elements(), settings.block};
            return grid.packed(grid.share(settings.density)) * sizeof(float);
          },
      .traffic = 5,
      .unbiased =
          [](const Options& options) { return read(options).rule.accumulate == Accumulate::none; },
      .make = [](const Options& options, const Bucket& bucket,
                 const Site& site) -> std::unique_ptr<Compressor> {
        if (site.device.kind == Device::Kind::cuda)
          return make_randomk_cuda(read(options), bucket, site);
        return std::make_unique<RandomkCompressor>(read(options), bucket, site);
      },
  };
  return scheme;
}

}  // namespace thinwire
