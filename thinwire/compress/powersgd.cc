// powersgd.cc: PowerSGD (Vogels et al. 2019): one step of subspace iteration per training step.
// Each matrix M = gradient + error travels as two thin factors, both through sums:
//
//     round 0   P = M Q       sum;  P made orthonormal
//     round 1   Q = M^T P     sum;  M' = P Q^T / N is the average, M - M' stays as error
//
// One-dimensional and unprofitable tensors travel as they are, in the sum of round 0.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "thinwire/compress/basis.h"
#include "thinwire/compress/low_rank.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/average.h"
#include "thinwire/kernels/low_rank.h"

namespace thinwire {
namespace {

enum class ErrorOf : std::uint8_t { average, local };
constexpr std::string_view error_names[] = {"average", "local"};

struct Settings {
  std::size_t rank = 2;
  double rate = 2;
  std::uint64_t warmup = 0;
  bool warm_start = true;
  ErrorOf error = ErrorOf::average;
  std::uint64_t seed = 0;
};

Settings read(const Options& options) {
  return {static_cast<std::size_t>(options.integer("rank", 1, 256)),
          options.number("rate", 0, 1e6),
          static_cast<std::uint64_t>(options.integer("warmup", 0, 1L << 40)),
          options.flag("warm_start"),
          static_cast<ErrorOf>(options.choice("error", error_names)),
          static_cast<std::uint64_t>(options.integer("seed", 0, 1L << 40))};
}

class PowerSgdCompressor final : public Compressor {
 public:
  PowerSgdCompressor(const Settings& settings, const Bucket& bucket, const Site& site)
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
    const LowRankLayout& layout = at(step);
    const std::size_t count = round == 0 ? layout.p + layout.plain_count : layout.q;
    return {Reduction::sum, DType::f32, count * sizeof(float)};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    require_f32_cpu(gradient, bucket_.elements(), who_);
    auto* floats = reinterpret_cast<float*>(out.data());
    if (turn.round == 0) {
      // The sum carries a NaN to every rank; the memory has taken what was finite.
      if (!take(at(turn.step), turn.step, gradient.f32(), floats))
        floats[0] = std::numeric_limits<float>::quiet_NaN();
    } else if (!out.empty()) {
      project(floats);
    }
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    require_f32_cpu(average, bucket_.elements(), who_);
    const LowRankLayout& layout = at(turn.step);
    const auto* floats = reinterpret_cast<const float*>(inbox.data.data());
    const bool finite = turn.round == 0 ? receive_p(layout, floats, average.f32())
                                        : receive_q(layout, floats, turn.step, average.f32());
    if (finite) return {};
    return {Code::skipped, "a rank's gradient was not finite, or too large for products in f32"};
  }

  // Back to gradient + error, which the next step then sends.
  void undo(const Turn& turn) override {
    const LowRankLayout& layout = at(turn.step);
    if (given_) {
      for (const ThinMatrix& matrix : layout.matrices) take_back(matrix);
      std::swap(q_, next_q_);
    }
    given_ = false;
    std::size_t at = 0;
    for (const PlainPart& plain : layout.plain) {
      std::copy_n(sent_.begin() + static_cast<std::ptrdiff_t>(at), plain.count,
                  v_.begin() + static_cast<std::ptrdiff_t>(plain.offset));
      at += plain.count;
    }
  }

  void visit_state(StateVisitor& visitor) override {
    visit_by_parameter(visitor, bucket_, "v", v_, Share::summed);
    if (!settings_.warm_start) return;
    for (const ThinMatrix& matrix : layout_.matrices) {
      const auto columns = std::span(q_).subspan(matrix.q, matrix.cols * matrix.rank);
      visitor.tensor(matrix.name + "/q", columns, Share::replicated);
    }
  }

 private:
  const LowRankLayout& at(std::uint64_t step) const {
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

  // Round 0: the gradient into the error, P and what travels plainly into `out`.
  bool take(const LowRankLayout& layout, std::uint64_t step, std::span<const float> gradient,
            float* out) {
    std::atomic<bool> finite = true;
    given_ = false;
    if (!settings_.warm_start) start_afresh(step);
    for (const ThinMatrix& matrix : layout.matrices) {
      for_rows(matrix, [&](const Panel& panel, std::size_t first) {
        const std::size_t at = matrix.offset + first * matrix.cols;
        if (!low_rank_take(panel, gradient.data() + at, v_.data() + at, q_.data() + matrix.q,
                           out + matrix.p + first * matrix.rank))
          finite = false;
      });
    }
    sent_.resize(layout.plain_count);
    std::size_t at = 0;
    for (const PlainPart& plain : layout.plain) {
      for (std::size_t i = plain.offset; i < plain.offset + plain.count; ++i, ++at) {
        const float sum = v_[i] + gradient[i];
        const bool good = std::isfinite(sum);
        if (!good) finite = false;
        sent_[at] = good ? sum : v_[i];
      }
    }
    if (!sent_.empty()) std::memcpy(out + layout.p, sent_.data(), sent_.size() * sizeof(float));
    return finite;
  }

  // After round 0: the plain averages are final, P becomes a basis.
  bool receive_p(const LowRankLayout& layout, const float* sum, std::span<float> average) {
    const float share = 1.0f / static_cast<float>(site_.world);
    std::copy_n(sum, layout.p, p_.begin());
    bool finite = scale_finite(p_.data(), layout.p, share);
    const float* from = sum + layout.p;
    for (const PlainPart& plain : layout.plain) {
      std::copy_n(from, plain.count, average.data() + plain.offset);
      finite = scale_finite(average.data() + plain.offset, plain.count, share) && finite;
      from += plain.count;
    }
    if (!finite) return false;
    for (const PlainPart& plain : layout.plain)
      std::fill_n(v_.begin() + static_cast<std::ptrdiff_t>(plain.offset), plain.count, 0.0f);
    for (const ThinMatrix& matrix : layout.matrices)
      orthonormalise({p_.data() + matrix.p, matrix.rows, matrix.rank, matrix.rank, 1},
                     std::nullopt);
    return true;
  }

  // Round 1: Q of this worker.
  void project(float* out) {
    for (const ThinMatrix& matrix : layout_.matrices) {
      for_cols(matrix, [&](const Panel& panel, std::size_t first) {
        low_rank_project(panel, v_.data() + matrix.offset + first, p_.data() + matrix.p,
                         out + matrix.q + first);
      });
    }
    std::copy_n(out, own_q_.size(), own_q_.begin());
  }

  // After round 1: the averages, the error, and the next step's Q.
  bool receive_q(const LowRankLayout& layout, const float* sum, std::uint64_t step,
                 std::span<float> average) {
    std::copy_n(sum, layout.q, mean_q_.begin());
    if (!scale_finite(mean_q_.data(), layout.q, 1.0f / static_cast<float>(site_.world)))
      return false;
    for (const ThinMatrix& matrix : layout.matrices) {
      const float* mean = mean_q_.data() + matrix.q;
      const float* kept = kept_q() + matrix.q;
      for_rows(matrix, [&](const Panel& panel, std::size_t first) {
        const std::size_t at = matrix.offset + first * matrix.cols;
        low_rank_give(panel, p_.data() + matrix.p + first * matrix.rank, mean, kept, v_.data() + at,
                      average.data() + at);
      });
    }
    given_ = !layout.matrices.empty();
    if (given_) find_next_q(step);
    return true;
  }

  // Only the space of Q's columns counts, so they go orthonormal into the next step: their length
  // is that of the gradient, and P would otherwise be of its square. A direction that died (a
  // gradient of zeros) is drawn anew.
  void find_next_q(std::uint64_t step) {
    next_q_ = mean_q_;
    for (const ThinMatrix& matrix : layout_.matrices)
      orthonormalise(columns(matrix, next_q_), random_at(matrix.stream, step + 1));
    std::swap(q_, next_q_);
  }

  const float* kept_q() const {
    return settings_.error == ErrorOf::local ? own_q_.data() : mean_q_.data();
  }

  void take_back(const ThinMatrix& matrix) {
    for (std::size_t i = 0; i < matrix.rows; ++i) {
      for (std::size_t j = 0; j < matrix.cols; ++j) {
        float sum = 0;
        for (std::size_t k = 0; k < matrix.rank; ++k)
          sum += p_[matrix.p + i * matrix.rank + k] * kept_q()[matrix.q + k * matrix.cols + j];
        v_[matrix.offset + i * matrix.cols + j] += sum;
      }
    }
  }

  Settings settings_;
  Bucket bucket_;
  Site site_;
  std::string who_;                    // for errors
  LowRankLayout layout_, everything_;  // ... and that of the warm-up
  std::vector<float>
      v_;  // the error; in mid-step M; of plain elements zero, but after a voided step
  std::vector<float> p_, q_;   // q_: orthonormal, of this step until its end
  std::vector<float> next_q_;  // after the step's end: what q_ was
  std::vector<float> mean_q_, own_q_;
  std::vector<float> sent_;  // plain elements of this step, until the next: undo() needs them
  bool given_ = false;       // v_ is without what was sent, q_ is the next step's
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
      .options =
          {{"rank", "2", "of the approximation, 1 to 256"},
           {"rate", "2",
            "a matrix travels as factors when they have less than 1/rate of its elements"},
           {"warmup", "0", "steps at the start that send everything as it is"},
           {"warm_start", "on", "start from the last step's Q (on), or from a random one (off)"},
           {"error", "average",
            "keep what the average lacks of this worker's gradient (the paper), or what its own "
            "share of it lacks (local)"},
           {"seed", "0", "of the first Q; the same on all workers"}},
      .variants = {"rank=1,error=local", "rank=4,rate=1", "rank=3,warm_start=off,rate=1"},
      .bytes =
          [](const Options& options, const Bucket& bucket) {
            const Settings settings = read(options);
            const LowRankLayout layout =
                lay_out(bucket, settings.rank, settings.rate, settings.seed);
            return (layout.p + layout.plain_count + layout.q) * sizeof(float);
          },
      .traffic = 28,
      .make = [](const Options& options, const Bucket& bucket,
                 const Site& site) -> std::unique_ptr<Compressor> {
        return std::make_unique<PowerSgdCompressor>(read(options), bucket, site);
      },
  };
  return scheme;
}

}  // namespace thinwire
