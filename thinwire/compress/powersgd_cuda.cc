// powersgd_cuda.cc: the compressor of powersgd in device memory. Its layouts, bytes and memory are
// those of powersgd.cc; every call only enqueues.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/powersgd_cuda.h"

#include <algorithm>
#include <string>
#include <vector>

#include "thinwire/compress/powersgd.h"
#include "thinwire/compress/powersgd_layout.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"

namespace thinwire {
namespace {

constexpr std::size_t pieces_of(std::size_t count, std::size_t size) {
  return (count + size - 1) / size;
}

template <typename T>
Buffer on_device(const std::vector<T>& values, Device device) {
  Buffer buffer(Place::cuda, values.size() * sizeof(T), device);
  copy_bytes(buffer.data(), values.data(), buffer.size(), {});
  synchronize({});
  return buffer;
}

// A layout of the bucket, cut into tiles for kernels.
class Plan {
 public:
  Plan(const PowerSgdLayout& layout, std::uint32_t number, std::size_t elements, Device device) {
    std::vector<PowerSgdMatrix> matrices;
    for (const ThinMatrix& thin : layout.matrices) {
      PowerSgdMatrix matrix;
      matrix.offset = thin.offset;
      matrix.p = thin.p;
      matrix.q = thin.q;
      matrix.p_sums = sums_p_;
      matrix.q_sums = sums_q_;
      matrix.stream = thin.stream;
      matrix.rows = static_cast<std::uint32_t>(thin.rows);
      matrix.cols = static_cast<std::uint32_t>(thin.cols);
      matrix.rank = static_cast<std::uint32_t>(thin.rank);
      sums_p_ += thin.rows * thin.rank * pieces_of(thin.cols, take_cols);
      sums_q_ += thin.cols * thin.rank * pieces_of(thin.rows, give_rows);
      matrices.push_back(matrix);
    }
    std::vector<PowerSgdPiece> pieces;
    std::size_t at = 0;
    for (const PlainPart& plain : layout.plain) {
      for (std::size_t i = 0; i < plain.count; i += piece_elements) {
        const std::size_t count = std::min<std::size_t>(piece_elements, plain.count - i);
        pieces.push_back({plain.offset + i, at, static_cast<std::uint32_t>(count)});
        at += count;
      }
    }
    cut(matrices, device);
    matrices_ = on_device(matrices, device);
    pieces_ = on_device(pieces, device);

    on_.layout = number;
    on_.matrix_count = static_cast<std::uint32_t>(matrices.size());
    on_.piece_count = static_cast<std::uint32_t>(pieces.size());
    on_.p_count = layout.p;
    on_.q_count = layout.q;
    on_.plain_count = layout.plain_count;
    on_.elements = elements;
    on_.matrices = matrices_.as<PowerSgdMatrix>();
    on_.takes = takes_.as<PowerSgdTile>();
    on_.gives = gives_.as<PowerSgdTile>();
    on_.pieces = pieces_.as<PowerSgdPiece>();
  }

  PowerSgdDevice& device() { return on_; }
  const PowerSgdDevice& device() const { return on_; }
  std::span<const PowerSgdGroup> groups() const { return groups_; }
  std::size_t sums() const { return std::max(sums_p_, sums_q_); }

 private:
  void cut(const std::vector<PowerSgdMatrix>& matrices, Device device) {
    std::vector<std::uint32_t> ranks;
    for (const PowerSgdMatrix& matrix : matrices) ranks.push_back(matrix.rank);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    std::vector<PowerSgdTile> takes, gives;
    for (const std::uint32_t rank : ranks) {
      PowerSgdGroup group{rank, static_cast<std::uint32_t>(takes.size()), 0,
                          static_cast<std::uint32_t>(gives.size()), 0};
      for (std::size_t m = 0; m < matrices.size(); ++m) {
        if (matrices[m].rank != rank) continue;
        tile(matrices[m], m, take_rows, take_cols, takes);
        tile(matrices[m], m, give_rows, give_cols, gives);
      }
      group.takes = static_cast<std::uint32_t>(takes.size()) - group.first_take;
      group.gives = static_cast<std::uint32_t>(gives.size()) - group.first_give;
      groups_.push_back(group);
    }
    takes_ = on_device(takes, device);
    gives_ = on_device(gives, device);
  }

  static void tile(const PowerSgdMatrix& matrix, std::size_t number, std::uint32_t rows,
                   std::uint32_t cols, std::vector<PowerSgdTile>& tiles) {
    for (std::size_t row = 0; row < matrix.rows; row += rows) {
      for (std::size_t col = 0; col < matrix.cols; col += cols)
        tiles.push_back({static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(row),
                         static_cast<std::uint32_t>(col)});
    }
  }

  std::size_t sums_p_ = 0, sums_q_ = 0;
  std::vector<PowerSgdGroup> groups_;
  Buffer matrices_, takes_, gives_, pieces_;
  PowerSgdDevice on_;
};

PowerSgdLayout all_plain(const Bucket& bucket) {
  PowerSgdLayout layout;
  layout.plain = {{0, bucket.elements()}};
  layout.plain_count = bucket.elements();
  return layout;
}

class PowerSgdCudaCompressor final : public Compressor {
 public:
  PowerSgdCudaCompressor(const PowerSgdSettings& settings, const Bucket& bucket, const Site& site)
      : settings_(settings),
        bucket_(bucket),
        site_(site),
        who_("powersgd, bucket " + std::to_string(bucket.id)),
        layout_(lay_out(bucket, settings.rank, settings.rate, settings.seed)),
        thin_(layout_, 1, bucket.elements(), site.device),
        warmup_(all_plain(bucket), 2, bucket.elements(), site.device) {
    const auto room = [&](std::size_t count, std::size_t size) {
      return Buffer(Place::cuda, count * size, site.device);
    };
    const bool local = settings.error == ErrorOf::local;
    flags_ = room(1, sizeof(PowerSgdFlags));
    v_ = room(bucket.elements(), sizeof(float));
    q_ = room(layout_.q, sizeof(float));
    old_q_ = room(layout_.q, sizeof(float));
    mean_q_ = room(layout_.q, sizeof(float));
    own_q_ = room(local ? layout_.q : 0, sizeof(float));
    sums_ = room(thin_.sums(), sizeof(float));
    columns_ = room(std::max(layout_.p, layout_.q), sizeof(double));
    for (Plan* plan : {&thin_, &warmup_}) {
      PowerSgdDevice& on = plan->device();
      on.flags = flags_.as<PowerSgdFlags>();
      on.v = v_.as<float>();
      on.q = q_.as<float>();
      on.old_q = old_q_.as<float>();
      on.mean_q = mean_q_.as<float>();
      on.own_q = own_q_.as<float>();
      on.sums = sums_.as<float>();
      on.columns = columns_.as<double>();
      on.kept_q = local ? on.own_q : on.mean_q;
    }
    const DeviceScope here(site.device);
    basis_afresh_cuda(thin_.device(), 0, {});
    synchronize({});
  }

  int rounds() const override { return layout_.matrices.empty() ? 1 : 2; }

  Leg leg(std::uint64_t step, int round) const override {
    const PowerSgdDevice& on = at(step).device();
    const std::size_t count = round == 0 ? on.p_count + on.plain_count : on.q_count;
    return {Reduction::sum, DType::f32, count * sizeof(float)};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    stream_ = turn.stream;
    Plan& plan = at(turn.step);
    auto* const floats = reinterpret_cast<float*>(out.data());
    if (turn.round == 0) {
      require_gradient(gradient, bucket_, site_.device, who_);
      if (last_ != &plan) change_to(plan);
      if (!settings_.warm_start) basis_afresh_cuda(thin_.device(), turn.step, turn.stream);
      powersgd_take_cuda(plan.device(), plan.groups(), gradient, floats, turn.verdict, turn.stream);
    } else {
      powersgd_project_cuda(plan.device(), plan.groups(), floats, turn.stream);
    }
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    const Plan& plan = at(turn.step);
    const PowerSgdDevice& on = plan.device();
    const bool first = turn.round == 0;
    cast_cuda(DType::f32, inbox.data.data(), DType::f32, first ? on.p : on.mean_q,
              first ? on.p_count + on.plain_count : on.q_count,
              1.0f / static_cast<float>(site_.world), turn.verdict, turn.stream);
    if (first) {
      basis_of_p_cuda(on, turn.stream);
    } else if (settings_.warm_start) {
      basis_of_q_cuda(on, turn.step, turn.stream);
    }
    if (turn.round + 1 == rounds()) {
      require_gradient(average, bucket_, site_.device, who_);
      powersgd_give_cuda(on, plan.groups(), average, turn.verdict, turn.stream);
    }
    return {};
  }

  void undo(const Turn&) override { fail("on a device a step ends with conclude()"); }

  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    powersgd_conclude_cuda(at(turn.step).device(), gradient, fill, turn.verdict, turn.stream);
  }

  void visit_state(StateVisitor& visitor) override {
    settle();
    last_ = nullptr;
    std::vector<float> v = host_copy(v_), q = host_copy(q_);
    visit_by_parameter(visitor, bucket_, "v", v, Share::summed);
    if (settings_.warm_start) {
      for (const ThinMatrix& matrix : layout_.matrices)
        visitor.tensor(matrix.name + "/q",
                       std::span(q).subspan(matrix.q, matrix.cols * matrix.rank),
                       Share::replicated);
    }
    copy_bytes(v_.data(), v.data(), v_.size(), stream_);
    copy_bytes(q_.data(), q.data(), q_.size(), stream_);
    synchronize(stream_);
  }

 private:
  const Plan& at(std::uint64_t step) const { return step < settings_.warmup ? warmup_ : thin_; }
  Plan& at(std::uint64_t step) { return step < settings_.warmup ? warmup_ : thin_; }

  // In the first step, and when the warm-up ends: makes room for what round 0 receives, which may
  // wait for the device.
  void change_to(Plan& plan) {
    settle();
    last_ = &plan;
    PowerSgdDevice& on = plan.device();
    const std::size_t bytes = (on.p_count + on.plain_count) * sizeof(float);
    if (p_.size() != bytes) {
      synchronize(stream_);
      p_ = Buffer();  // before the other, so that both need not fit
      p_ = Buffer(Place::cuda, bytes, site_.device);
    }
    on.p = p_.as<float>();
  }

  // Afterwards v is the error.
  void settle() {
    if (last_ != nullptr) powersgd_settle_cuda(last_->device(), last_->groups(), stream_);
    zero_bytes(flags_.data(), flags_.size(), stream_);
  }

  std::vector<float> host_copy(const Buffer& buffer) const {
    std::vector<float> values(buffer.size() / sizeof(float));
    copy_bytes(values.data(), buffer.data(), buffer.size(), stream_);
    synchronize(stream_);
    return values;
  }

  PowerSgdSettings settings_;
  Bucket bucket_;
  Site site_;
  std::string who_;  // for errors
  PowerSgdLayout layout_;
  Plan thin_, warmup_;
  const Plan* last_ = nullptr;  // of the last step; null when v is the error
  Buffer flags_, v_, p_, q_, old_q_, mean_q_, own_q_, sums_, columns_;
  Stream stream_;  // of the last step
};

}  // namespace

std::unique_ptr<Compressor> make_powersgd_cuda(const PowerSgdSettings& settings,
                                               const Bucket& bucket, const Site& site) {
  return std::make_unique<PowerSgdCudaCompressor>(settings, bucket, site);
}

}  // namespace thinwire
