// sparse_cuda.cc: the compressor of topk and dgc in device memory. Its plan, bytes and memory are
// those of sparse.cc; every call only enqueues.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "thinwire/compress/sparse.h"
#include "thinwire/compress/sparse_frame_cuda.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/memory/dgc_cuda.h"

namespace thinwire {
namespace {

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + slot_alignment - 1) / slot_alignment * slot_alignment;
}

class SparseCudaCompressor final : public Compressor {
 public:
  SparseCudaCompressor(const SparseSettings& settings, const Bucket& bucket, const Site& site)
      : settings_(settings),
        bucket_(bucket),
        site_(site),
        memory_(bucket, settings.memory, site.device) {
    if (settings.clip > 0 && !settings.clip_global) {
      const std::size_t scratch = norm_scratch(bucket.elements());
      norm_ = Buffer(Place::cuda, (scratch + 1) * sizeof(double), site.device);
    }
  }

  bool needs_norm() const override { return settings_.clip > 0 && settings_.clip_global; }

  Leg leg(std::uint64_t step, int) const override {
    const SparsePlan now = plan_sparse(settings_, bucket_, site_, step);
    if (now.dense) return {Reduction::sum, DType::f32, bucket_.elements() * sizeof(float)};
    return {Reduction::gather, DType::f32, rounded_up(now.bound)};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    check(gradient);
    stream_ = turn.stream;
    const SparsePlan now = prepare(turn);
    clip(turn, gradient);
    memory_.step(gradient, turn.verdict, turn.stream);
    if (now.dense) {
      dgc_scatter(memory_.device(), reinterpret_cast<float*>(out.data()), turn.stream);
    } else {
      frame_.encode(now.header, settings_.index, memory_.device(), memory_.tile_at(), out,
                    turn.written, turn.stream);
    }
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    check(average);
    const SparsePlan now = plan_frames(turn);  // the memory may be steps ahead (delayed averaging)
    if (now.dense) {
      dgc_average(reinterpret_cast<const float*>(inbox.data.data()),
                  1.0f / static_cast<float>(site_.world), average, turn.verdict, turn.stream);
    } else {
      frame_.decode(now.header, inbox.data, inbox.slot_bytes, site_.world, now.most, average,
                    turn.verdict, turn.stream);
    }
    return {};
  }

  void undo(const Turn&) override { fail("on a device a step ends with conclude()"); }

  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    memory_.conclude(gradient, fill, turn.verdict, turn.stream);
  }

  // Quotas belong to the density of the step, so that is set first.
  void keep(const Turn& turn) override {
    prepare(turn);
    memory_.keep(turn.stream);
  }
  void restore(const Turn& turn) override { memory_.restore(turn.verdict, turn.stream); }

  void visit_state(StateVisitor& visitor) override { memory_.visit_state(visitor, stream_); }

 private:
  void check(const TensorView& gradient) const {
    if (gradient.device == site_.device && gradient.count == bucket_.elements()) return;
    fail("rank ", site_.rank, ", bucket ", bucket_.id, ": expected ", bucket_.elements(),
         " elements on cuda:", site_.device.index, ", got ", gradient.count, " on ",
         gradient.device.kind == Device::Kind::cpu ? "the CPU" : "another device");
  }

  SparsePlan prepare(const Turn& turn) {
    const SparsePlan now = plan_frames(turn);
    memory_.prepare(now.density, turn.stream);
    return now;
  }

  SparsePlan plan_frames(const Turn& turn) {
    const SparsePlan now = plan_sparse(settings_, bucket_, site_, turn.step);
    if (!now.dense)
      frame_.prepare(now.header, now.most, rounded_up(now.bound), site_.world, site_.device,
                     turn.stream);
    return now;
  }

  // Leaves the factor of the gradient in device memory.
  void clip(const Turn& turn, const TensorView& gradient) {
    if (settings_.clip <= 0) return;
    const double* norm = turn.norm;
    if (!settings_.clip_global) {
      auto* const own = norm_.as<double>();
      squared_norm_cuda(gradient.dtype, gradient.data, gradient.count, own + 1, own, turn.stream);
      norm = own;
    }
    dgc_clip(memory_.device(), norm, clip_limit(settings_, site_), turn.stream);
  }

  SparseSettings settings_;
  Bucket bucket_;
  Site site_;
  DgcCudaMemory memory_;
  SparseFrameCuda frame_;
  Buffer norm_;    // of this bucket, and memory for it
  Stream stream_;  // of the last step
};

}  // namespace

std::unique_ptr<Compressor> make_sparse_cuda(const SparseSettings& settings, const Bucket& bucket,
                                             const Site& site) {
  return std::make_unique<SparseCudaCompressor>(settings, bucket, site);
}

}  // namespace thinwire
