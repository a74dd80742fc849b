// sparse.h: the compressor of topk and dgc. The memory adds the gradient and yields the survivors;
// a sparse frame carries them. Where a frame would be larger (early warm-up, many workers), a dense
// all-reduce carries the same survivors instead.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "thinwire/compress/compressor.h"
#include "thinwire/core/options.h"
#include "thinwire/memory/dgc.h"
#include "thinwire/memory/warmup.h"
#include "thinwire/wire/frame.h"

namespace thinwire {

struct SparseSettings {
  std::uint8_t scheme = 0;
  DgcMemoryOptions memory;
  Warmup warmup;
  ValueCoder values = ValueCoder::log4;
  IndexChoice index = IndexChoice::golomb;
  double clip = 0;  // largest norm of the average gradient; 0: no clipping
  // Clip by the norm over all buckets, or over this bucket alone (an approximation).
  bool clip_global = true;
};

// The options that topk and dgc share.
std::vector<Option> sparse_options();
void read_sparse_options(const Options& options, SparseSettings& settings);

// How a step is sent; the same on all ranks.
struct SparsePlan {
  double density = 0;
  std::size_t most = 0;
  FrameHeader header;
  std::size_t bound = 0;  // largest size of a frame
  bool dense = false;
};
SparsePlan plan_sparse(const SparseSettings& settings, const Bucket& bucket, const Site& site,
                       std::uint64_t step);

// The norm that a worker's gradient may have, from `clip`: the paper's local clipping gives each of
// N workers 1/sqrt(N) of it.
double clip_limit(const SparseSettings& settings, const Site& site);

// The compressor, on the CPU or on a device.
std::unique_ptr<Compressor> make_sparse(const SparseSettings& settings, const Bucket& bucket,
                                        const Site& site);
// Where site.device is a CUDA device (sparse_cuda.cc, sparse_nocuda.cc).
std::unique_ptr<Compressor> make_sparse_cuda(const SparseSettings& settings, const Bucket& bucket,
                                             const Site& site);

class SparseCompressor final : public Compressor {
 public:
  SparseCompressor(const SparseSettings& settings, const Bucket& bucket, const Site& site);

  bool needs_norm() const override { return settings_.clip > 0 && settings_.clip_global; }
  Leg leg(std::uint64_t step, int round) const override;
  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override;
  std::optional<bool> sound() const override { return sound_; }
  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override;
  bool learns(int) const override { return false; }
  void undo(const Turn& turn) override;
  void forget(const Turn& turn, TensorView gradient) override;
  void visit_state(StateVisitor& visitor) override;

 private:
  SparsePlan plan(std::uint64_t step) const { return plan_sparse(settings_, bucket_, site_, step); }

  float clip_scale(const Turn& turn, std::span<const float> gradient) const;
  std::size_t encode_dense(Bytes out) const;
  Status decode_dense(const Inbox& inbox, std::span<float> average) const;
  Status decode_frames(const SparsePlan& plan, const Inbox& inbox, std::span<float> average);

  SparseSettings settings_;
  Bucket bucket_;
  Site site_;
  std::string who_;  // "dgc, bucket 3", for errors
  DgcMemory memory_;
  Survivors survivors_;      // of the last step, for undo()
  std::vector<float> sent_;  // the values that receivers decode for them
  bool sound_ = true;        // the last gradient was within the limit
  float scale_ = 1;          // factor by which it was clipped
  std::vector<Sparse> received_;
};

}  // namespace thinwire
