// powersgd.cc: PowerSGD (Vogels et al. 2019): one step of subspace iteration per training step.
// Each matrix M = gradient + error is sent as two thin factors, both through sums:
//
//     round 0   P = M Q       sum;  P made orthonormal
//     round 1   Q = M^T P     sum;  M' = P Q^T / N is the average, M - M' stays as error
//
// Vectors, and matrices for which factors do not pay, are sent uncompressed in the sum of round 0.
//
// What was sent is subtracted from v when the next gradient is added, panel by panel, while it is
// in a cache anyway. Until then v holds M, so undo() has nothing to compute and is exact.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/powersgd.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "thinwire/compress/basis.h"
#include "thinwire/compress/powersgd_layout.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/average.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/powersgd.h"

namespace thinwire {
namespace {

constexpr std::string_view error_names[] = {"average", "local"};

// Elements of v that are still in the L1 cache when take() follows settle().
constexpr std::size_t cached = std::size_t{1} << 12;

PowerSgdSettings read(const Options& options) {
  return {static_cast<std::size_t>(options.integer("rank", 1, 256)),
          options.number("rate", 0, 1e6),
          static_cast<std::uint64_t>(options.integer("warmup", 0, 1L << 40)),
          options.flag("warm_start"),
          static_cast<ErrorOf>(options.choice("error", error_names)),
          static_cast<std::uint64_t>(options.integer("seed", 0, 1L << 40))};
}

class PowerSgdCompressor final : public Compressor {
 public:
  PowerSgdCompressor(const PowerSgdSettings& settings, const Bucket& bucket, const Site& site)
      : settings_(settings),
        bucket_(bucket),
        site_(site),
        who_("powersgd, bucket " + std::to_string(bucket.id)),
        layout_(lay_out(bucket, settings.rank, settings.rate, settings.seed)),
        v_(bucket.elements()),
        p_(layout_.p),
        q_(layout_.q),
        next_q_(layout_.q),
        mean_q_(layout_.q),
        own_q_(settings.error == ErrorOf::local ? layout_.q : 0) {
    everything_.plain = {{0, bucket.elements()}};
    everything_.plain_count = bucket.elements();
    start_afresh(0);
  }

  int rounds() const override { return layout_.matrices.empty() ? 1 : 2; }

  Leg leg(std::uint64_t step, int round) const override {
    const PowerSgdLayout& layout = at(step);
    const std::size_t count = round == 0 ? layout.p + layout.plain_count : layout.q;
    return {Reduction::sum, DType::f32, count * sizeof(float)};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    require_f32_cpu(gradient, bucket_.elements(), who_);
    auto* floats = reinterpret_cast<float*>(out.data());
    if (turn.round == 0) {
      // The sum carries a NaN to every rank. The memory has added the elements within the limit.
      sound_ = take(at(turn.step), turn.step, gradient.f32(), floats);
      if (!sound_) floats[0] = std::numeric_limits<float>::quiet_NaN();
    } else if (!out.empty()) {
      project(floats);
    }
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    require_f32_cpu(average, bucket_.elements(), who_);
    const PowerSgdLayout& layout = at(turn.step);
    const auto* floats = reinterpret_cast<const float*>(inbox.data.data());
    const bool finite =
        turn.round == 0 ? receive_p(layout, floats) : receive_q(layout, floats, turn.step);
    if (!finite)
      return {Code::skipped, "a rank's gradient was not finite, or too large for products in f32"};
    if (turn.round + 1 < rounds()) return {};
    if (turn.wanted) give(layout, average.f32());
    given_ = &layout;  // every rank subtracts the average, or its part of it
    return {};
  }

  std::optional<bool> sound() const override { return sound_; }

  // v is gradient + error again, which the next step sends.
  void undo(const Turn&) override {
    if (given_ == &layout_ && !layout_.matrices.empty()) std::swap(q_, next_q_);
    given_ = nullptr;
  }

  void forget(const Turn& turn, TensorView gradient) override {
    undo(turn);
    take_out({Accumulate::residual}, 1.0f, gradient.f32().data(), nullptr, nullptr, v_.data(),
             v_.size());
  }

  void visit_state(StateVisitor& visitor) override {
    settle();
    visit_by_parameter(visitor, bucket_, "v", v_, Share::summed);
    if (!settings_.warm_start) return;
    for (const ThinMatrix& matrix : layout_.matrices) {
      const auto columns = std::span(q_).subspan(matrix.q, matrix.cols * matrix.rank);
      visitor.tensor(matrix.name + "/q", columns, Share::replicated);
    }
  }

 private:
  const PowerSgdLayout& at(std::uint64_t step) const {
    return step < settings_.warmup ? everything_ : layout_;
  }

  static Basis columns(const ThinMatrix& matrix, std::vector<float>& q) {
    return {q.data() + matrix.q, matrix.cols, matrix.rank, 1, matrix.cols};
  }

  void start_afresh(std::uint64_t step) {
    for (const ThinMatrix& matrix : layout_.matrices) {
      const Basis basis = columns(matrix, q_);
      draw(basis, random_at(matrix.stream, step));
      orthonormalise(basis, std::nullopt);
    }
  }

  // Round 0: adds the gradient to v, and writes P and the uncompressed elements to `out`.
  bool take(const PowerSgdLayout& layout, std::uint64_t step, std::span<const float> gradient,
            float* out) {
    std::atomic<bool> sound = true;
    if (given_ != &layout) settle();  // the warm-up has ended
    if (!settings_.warm_start) start_afresh(step);
    for (const ThinMatrix& matrix : layout.matrices) {
      for_rows(matrix, [&](Panel panel, std::size_t first) {
        const std::size_t end = first + panel.rows;
        const std::size_t few = std::max<std::size_t>(1, cached / matrix.cols);
        for (; first < end; first += panel.rows) {
          panel.rows = std::min(few, end - first);
          const std::size_t at = matrix.offset + first * matrix.cols;
          if (given_) settle(matrix, panel, first);
          if (!powersgd_take(panel, gradient.data() + at, v_.data() + at, q_.data() + matrix.q,
                             out + matrix.p + first * matrix.rank))
            sound = false;
        }
      });
    }
    float* to = out + layout.p;
    for (const PlainPart& plain : layout.plain) {
      for (std::size_t i = plain.offset; i < plain.offset + plain.count; ++i) {
        const float before = given_ ? 0.0f : v_[i];
        const bool good = within_limit(gradient[i]);
        if (!good) sound = false;
        *to++ = v_[i] = good ? before + gradient[i] : before;
      }
    }
    given_ = nullptr;
    return sound;
  }

  // Subtracts what the last step sent from these rows.
  void settle(const ThinMatrix& matrix, const Panel& panel, std::size_t first) {
    powersgd_settle(panel, p_.data() + matrix.p + first * matrix.rank, kept_q() + matrix.q,
                    v_.data() + matrix.offset + first * matrix.cols);
  }

  void settle() {
    if (!given_) return;
    for (const ThinMatrix& matrix : given_->matrices) {
      for_rows(matrix,
               [&](const Panel& panel, std::size_t first) { settle(matrix, panel, first); });
    }
    for (const PlainPart& plain : given_->plain)
      std::fill_n(v_.begin() + static_cast<std::ptrdiff_t>(plain.offset), plain.count, 0.0f);
    given_ = nullptr;
  }

  // After round 0: stores the averages of the uncompressed elements, and makes P orthonormal.
  bool receive_p(const PowerSgdLayout& layout, const float* sum) {
    const float share = 1.0f / static_cast<float>(site_.world);
    std::copy_n(sum, layout.p, p_.begin());
    plain_.assign(sum + layout.p, sum + layout.p + layout.plain_count);
    const bool finite = scale_finite(p_.data(), layout.p, share);
    if (!scale_finite(plain_.data(), plain_.size(), share) || !finite) return false;
    for (const ThinMatrix& matrix : layout.matrices)
      orthonormalise({p_.data() + matrix.p, matrix.rows, matrix.rank, matrix.rank, 1},
                     std::nullopt);
    return true;
  }

  // Round 1: computes this worker's Q.
  void project(float* out) {
    for (const ThinMatrix& matrix : layout_.matrices) {
      for_cols(matrix, [&](const Panel& panel, std::size_t first) {
        powersgd_project(panel, v_.data() + matrix.offset + first, p_.data() + matrix.p,
                         out + matrix.q + first);
      });
    }
    std::copy_n(out, own_q_.size(), own_q_.begin());
  }

  // After round 1: stores the mean Q, and computes the Q of the next step.
  bool receive_q(const PowerSgdLayout& layout, const float* sum, std::uint64_t step) {
    std::copy_n(sum, layout.q, mean_q_.begin());
    if (!scale_finite(mean_q_.data(), layout.q, 1.0f / static_cast<float>(site_.world)))
      return false;
    if (!layout.matrices.empty()) find_next_q(step);
    return true;
  }

  // Writes the averages after the last round.
  void give(const PowerSgdLayout& layout, std::span<float> average) const {
    for (const ThinMatrix& matrix : layout.matrices) {
      for_rows(matrix, [&](const Panel& panel, std::size_t first) {
        powersgd_give(panel, p_.data() + matrix.p + first * matrix.rank, mean_q_.data() + matrix.q,
                      average.data() + matrix.offset + first * matrix.cols);
      });
    }
    auto from = plain_.cbegin();
    for (const PlainPart& plain : layout.plain) {
      std::copy_n(from, plain.count, average.data() + plain.offset);
      from += static_cast<std::ptrdiff_t>(plain.count);
    }
  }

  // Only the space of Q's columns matters, so they are made orthonormal for the next step. Their
  // length is that of the gradient, and P would otherwise grow with its square. A direction that
  // vanished (a gradient of zeros) is replaced by a random one.
  void find_next_q(std::uint64_t step) {
    next_q_ = mean_q_;
    for (const ThinMatrix& matrix : layout_.matrices)
      orthonormalise(columns(matrix, next_q_), random_at(matrix.stream, step + 1));
    std::swap(q_, next_q_);
  }

  const float* kept_q() const {
    return settings_.error == ErrorOf::local ? own_q_.data() : mean_q_.data();
  }

  PowerSgdSettings settings_;
  Bucket bucket_;
  Site site_;
  std::string who_;                     // for errors
  PowerSgdLayout layout_, everything_;  // everything_: the layout of the warm-up
  std::vector<float> v_;                // M of the last step; after settle() the error
  std::vector<float> p_, q_;            // q_ is orthonormal
  std::vector<float> next_q_;           // after the step: the previous q_, for undo()
  std::vector<float> mean_q_, own_q_;
  std::vector<float> plain_;  // averages of uncompressed elements, until the last round
  // Not null: v_ still contains what was sent by this layout, and q_ is that of the next step.
  const PowerSgdLayout* given_ = nullptr;
  bool sound_ = true;  // the last gradient was within the limit
};

}  // namespace

const Scheme& powersgd_scheme() {
  static const Scheme scheme{
      .name = "powersgd",
      .id = 11,
      .paper = "Vogels et al. 2019, PowerSGD: practical low-rank gradient compression",
      .summary = "Sends each matrix as two thin factors that are summed, keeps the error.",
      .bits = "32 * rank * (1/rows + 1/columns)",
      .reducible = true,
      .biased = true,
      .feedback = true,
      .stochastic = false,
      .momentum = false,
      .cuda = true,
      .options =
          {{"rank", "2", "Rank of the approximation, 1 to 256."},
           {"rate", "2",
            "Send a matrix as factors when they have less than 1/rate of its elements."},
           {"warmup", "0", "Number of uncompressed steps at the start."},
           {"warm_start", "on", "Start from the last step's Q (on) or from a random one (off)."},
           {"error", "average",
            "Error to keep: this worker's gradient minus the average (average, as in the paper) or "
            "minus its own part of it (local)."},
           {"seed", "0", "Seed of the first Q; the same on all workers."}},
      .variants = {"rank=1,error=local", "rank=4,rate=1", "rank=3,warm_start=off,rate=1"},
      .bytes =
          [](const Options& options, const Bucket& bucket) {
            const PowerSgdSettings settings = read(options);
            const PowerSgdLayout layout =
                lay_out(bucket, settings.rank, settings.rate, settings.seed);
            return (layout.p + layout.plain_count + layout.q) * sizeof(float);
          },
      .traffic = 28,
      .make = [](const Options& options, const Bucket& bucket,
                 const Site& site) -> std::unique_ptr<Compressor> {
        if (site.device.kind == Device::Kind::cuda)
          return make_powersgd_cuda(read(options), bucket, site);
        return std::make_unique<PowerSgdCompressor>(read(options), bucket, site);
      },
  };
  return scheme;
}

}  // namespace thinwire
