// csc.cc: coarse-grained sparse communication (GradientFlow, Sun et al. 2019). All workers sum the
// L1 norms of a bucket's chunks, so all of them know the same largest chunks, and sum only those.
// No indices travel, and the bytes do not grow with the number of workers.
//
//     select=current    round 0 sums the norms and picks chunks; round 1 sums the picked chunks
//     select=previous   one round: the chunks picked by the last step's norms, then the norms
//
// A norm is sent as the mean magnitude of its chunk: the order is the same for equal chunks, and
// fair to a shorter last one. An element beyond the limit (kernels/limit.h) makes the norm of its
// chunk NaN, which every worker sees in the sum.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/csc.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "thinwire/compress/memory_options.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/memory/csc.h"
#include "thinwire/memory/largest.h"

namespace thinwire {
namespace {

constexpr std::string_view select_names[] = {"current", "previous"};
constexpr std::string_view value_names[] = {"f32", "f16", "bf16"};  // in order of DType

// With fewer chunks than this, a few per cent of them would be all or nothing.
constexpr std::size_t least_chunks = 64;

CscSettings read(const Options& options) {
  CscSettings settings;
  settings.density = options.number("density", 0, 1);
  settings.chunk = static_cast<std::size_t>(options.integer("chunk", 1, 1L << 30));
  settings.previous = options.choice("select", select_names) == 1;
  settings.warmup =
      static_cast<std::uint64_t>(options.integer("warmup", 0, std::numeric_limits<int>::max()));
  settings.rule = read_momentum_options(options);
  settings.values = static_cast<DType>(options.choice("values", value_names));
  return settings;
}

// The chunks with the largest norms, the lower number first among equals; in ascending order.
std::vector<std::uint32_t> largest(std::span<const float> norms, std::size_t wanted) {
  std::vector<std::uint64_t> keys(norms.size());
  for (std::size_t i = 0; i < keys.size(); ++i)
    keys[i] = magnitude_key(norms[i], static_cast<std::uint32_t>(i));
  const auto end = keys.begin() + static_cast<std::ptrdiff_t>(wanted);  // of the largest
  std::nth_element(keys.begin(), end, keys.end(), std::greater<>());
  std::vector<std::uint32_t> picks(wanted);
  for (std::size_t i = 0; i < wanted; ++i) picks[i] = index_of(keys[i]);
  std::sort(picks.begin(), picks.end());
  return picks;
}

class CscCompressor final : public Compressor {
 public:
  CscCompressor(const CscSettings& settings, const Bucket& bucket, const Site& site)
      : settings_(settings),
        bucket_(bucket),
        grid_(csc_grid(bucket.elements(), settings.chunk)),
        values_{settings.values, site.world},
        norms_as_{settings.norms(), site.world},
        who_("rank " + std::to_string(site.rank) + ", bucket " + std::to_string(bucket.id)),
        memory_(bucket, grid_, settings.rule, values_),
        norms_(grid_.count()) {}

  int rounds() const override { return settings_.previous ? 1 : 2; }
  bool in_turn() const override { return true; }

  Leg leg(std::uint64_t step, int round) const override {
    return CscPlan(settings_, grid_, step).leg(round);
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    if (turn.round == 0) {
      require_f32_cpu(gradient, bucket_.elements(), who_);
      norms_before_ = norms_;
      memory_.take_in(gradient.f32(), grid_.chunk, sums_);
    }
    if (turn.round == 0 && !settings_.previous) {
      write_norms(false, out);
    } else {
      if (settings_.previous) pick(turn.step);
      const std::size_t bytes = CscPlan(settings_, grid_, turn.step).value_bytes;
      memory_.send(picks_, settings_.is_warmup(turn.step) ? Velocity::keep : Velocity::mask,
                   out.first(bytes));
      if (settings_.previous) write_norms(!settings_.is_warmup(turn.step), out.subspan(bytes));
    }
    return out.size();
  }

  std::optional<bool> sound() const override { return all_finite(sums_); }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    require_f32_cpu(average, bucket_.elements(), who_);
    const bool has_chunks = turn.round == 1 || settings_.previous;
    const std::size_t bytes = has_chunks ? CscPlan(settings_, grid_, turn.step).value_bytes : 0;
    // Reads the norms first: they tell whether the step is skipped.
    if (turn.round == 0 && !norms_as_.read(inbox.data.subspan(bytes), norms_))
      return {Code::skipped, "a rank's gradient was not finite"};
    if (!has_chunks) {
      pick(turn.step);
      return {};
    }
    if (!turn.wanted) return {};
    received_.resize(grid_.packed(picks_.size()));
    if (!values_.read(inbox.data.first(bytes), received_))
      return {Code::skipped, "a sum over the ranks was not finite"};
    grid_.scatter(received_.data(), picks_, average.f32().data());
    return {};
  }

  bool learns(int round) const override { return round == 0; }  // the norms

  void undo(const Turn&) override {
    memory_.undo();
    norms_ = norms_before_;
  }

  void forget(const Turn& turn, TensorView gradient) override {
    undo(turn);
    memory_.forget(gradient.f32());
  }

  void visit_state(StateVisitor& visitor) override {
    memory_.visit_state(visitor);
    if (settings_.previous) {
      visitor.tensor("bucket" + std::to_string(bucket_.id) + "/norms", norms_, Share::replicated);
    }
  }

 private:
  void pick(std::uint64_t step) {
    picks_ = largest(norms_, CscPlan(settings_, grid_, step).wanted);
  }

  // With `masked`, chunks that were just sent have norm 0: nothing is left of them, and with their
  // full norm they would be picked again at once.
  void write_norms(bool masked, Bytes out) {
    std::vector<float> means(sums_.size());
    for (std::size_t i = 0; i < means.size(); ++i)
      means[i] = static_cast<float>(sums_[i] / static_cast<double>(grid_.size(i)));
    for (const std::uint32_t sent : masked ? Picks(picks_) : Picks()) means[sent] = 0;
    for (std::size_t i = 0; i < means.size(); ++i) {
      // Infinity would be clamped to the limit of f16; NaN is not.
      if (!std::isfinite(sums_[i])) means[i] = std::numeric_limits<float>::quiet_NaN();
    }
    norms_as_.write(means, out);
  }

  CscSettings settings_;
  Bucket bucket_;
  CscGrid grid_;
  SummedValues values_, norms_as_;
  std::string who_;  // "rank 1, bucket 3", for errors
  CscMemory memory_;
  std::vector<double> sums_;          // this worker's L1 norms in this step
  std::vector<float> norms_;          // their mean over the workers, as last received
  std::vector<float> norms_before_;   // norms_ before this step, for undo()
  std::vector<std::uint32_t> picks_;  // of the step
  std::vector<float> received_;       // kept for its memory
};

std::vector<Option> options() {
  std::vector<Option> all = {
      {"density", "0.1", "Fraction of the chunks sent, in (0, 1]."},
      {"chunk", "32768",
       "Elements per chunk. Small buckets have smaller chunks, at least 64 of them."},
      {"select", "current",
       "Choose chunks by the norms of this step (current: two rounds) or of the last one "
       "(previous: one round)."},
      {"warmup", "0", "Number of dense steps at the start, with plain momentum."},
      {"values", "f32", "Type in which chunks are summed: f32, f16 or bf16."},
  };
  for (const Option& option : momentum_options()) all.push_back(option);
  return all;
}

std::size_t bytes_of(const Options& options, const Bucket& bucket) {
  const CscSettings settings = read(options);
  const CscPlan plan(settings, csc_grid(bucket.elements(), settings.chunk), settings.warmup);
  return plan.value_bytes + plan.norm_bytes;
}

}  // namespace

CscGrid csc_grid(std::size_t elements, std::size_t chunk) {
  std::size_t most = std::max<std::size_t>(1, elements / least_chunks);
  if (most > 16) most -= most % 16;
  return {elements, std::min(chunk, most)};
}

CscPlan::CscPlan(const CscSettings& settings, const CscGrid& grid, std::uint64_t step)
    : wanted(settings.is_warmup(step) ? grid.count() : grid.share(settings.density)),
      values(grid.packed(wanted)),
      value_bytes(values * size_of(settings.values)),
      norm_bytes(grid.count() * size_of(settings.norms())),
      previous(settings.previous),
      dtype(settings.values) {}

Leg CscPlan::leg(int round) const {
  if (previous) return {Reduction::sum, dtype, value_bytes + norm_bytes};
  return round == 0 ? Leg{Reduction::sum, DType::f32, norm_bytes}
                    : Leg{Reduction::sum, dtype, value_bytes};
}

const Scheme& csc_scheme() {
  static const Scheme scheme{
      .name = "csc",
      .id = 6,
      .paper = "Sun et al. 2019, GradientFlow",
      .summary =
          "Coarse-grained sparse communication: sends the chunks with the largest summed norm "
          "through an all-reduce.",
      .bits = "32 * density + 32 / chunk",
      .reducible = true,
      .biased = true,
      .feedback = true,
      .stochastic = false,
      .momentum = true,
      .cuda = true,
      .options = options(),
      .variants = {"density=0.1,nesterov=on,chunk=7", "density=0.05,select=previous,chunk=32",
                   "density=0.1,select=previous,values=f16"},
      // After the warm-up.
      .bytes = bytes_of,
      .traffic = 20,
      .make = [](const Options& options, const Bucket& bucket,
                 const Site& site) -> std::unique_ptr<Compressor> {
        if (site.device.kind == Device::Kind::cuda)
          return make_csc_cuda(read(options), bucket, site);
        return std::make_unique<CscCompressor>(read(options), bucket, site);
      },
  };
  return scheme;
}

}  // namespace thinwire
