// sparse.cc: sends survivors in a frame, and averages the frames of all ranks.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/sparse.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "thinwire/compress/frames.h"
#include "thinwire/kernels/average.h"
#include "thinwire/kernels/clip.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

constexpr std::string_view index_names[] = {"smallest", "golomb", "elias_fano",
                                            "gap"};  // in order of IndexChoice
constexpr std::string_view select_names[] = {"steered", "exact"};
constexpr std::string_view quota_names[] = {"bucket", "layer"};

// A compressor that only decodes needs no memory.
DgcMemoryOptions memory_at(const Site& site, DgcMemoryOptions options) {
  if (!site.sends) options.accumulate = Accumulate::none;
  return options;
}

}  // namespace

std::vector<Option> sparse_options() {
  return {
      {"density", "0.001", "Fraction of the elements sent, in (0, 1]."},
      {"values", "log4", "Code of the values: f32, f16, bf16, log8, log4 or sign."},
      {"index", "golomb",
       "Code of the indices: golomb, elias_fano, gap (smaller, slower) or smallest (tries all)."},
      {"select", "steered",
       "Choice of elements: steered (a threshold kept from step to step) or exact (always the "
       "largest)."},
      {"quota", "bucket", "Use one quota and threshold per bucket or per layer."},
      {"warmup", "0", "Steps of the warm-up: 25, 6.25, 1.56, 0.39 % in four stages, then density."},
  };
}

void read_sparse_options(const Options& options, SparseSettings& settings) {
  settings.warmup.density = options.number("density", 0, 1);
  settings.warmup.steps =
      static_cast<std::uint64_t>(options.integer("warmup", 0, std::numeric_limits<int>::max()));
  settings.values = static_cast<ValueCoder>(options.choice("values", value_coder_names));
  settings.index = static_cast<IndexChoice>(options.choice("index", index_names));
  settings.memory.exact = options.choice("select", select_names) == 1;
  settings.memory.per_layer = options.choice("quota", quota_names) == 1;
}

SparsePlan plan_sparse(const SparseSettings& settings, const Bucket& bucket, const Site& site,
                       std::uint64_t step) {
  SparsePlan plan;
  const std::size_t elements = bucket.elements();
  plan.density = settings.warmup.density_at(step);
  plan.most = most_survivors(bucket, settings.memory, plan.density);
  plan.header.scheme = settings.scheme;
  plan.header.values = settings.values;
  plan.header.bucket = bucket.id;
  plan.header.step = static_cast<std::uint32_t>(step);
  plan.header.elements = static_cast<std::uint32_t>(elements);
  const double expected = plan.density * static_cast<double>(elements);
  plan.header.chunk_log2 = chunk_log2_for(plan.header.elements, static_cast<std::size_t>(expected));
  plan.bound = sparse_frame_bound(plan.header, plan.most);
  // Per rank, a gather moves N-1 frames, and a ring all-reduce moves 2(N-1)/N dense buckets.
  const auto world = static_cast<double>(site.world);
  const auto dense_bytes = static_cast<double>(elements * sizeof(float));
  plan.dense = site.sums && site.world > 1 && elements > 0 &&
               world * static_cast<double>(plan.bound) > 2 * dense_bytes;
  return plan;
}

double clip_limit(const SparseSettings& settings, const Site& site) {
  return settings.clip / std::sqrt(static_cast<double>(site.world));
}

std::unique_ptr<Compressor> make_sparse(const SparseSettings& settings, const Bucket& bucket,
                                        const Site& site) {
  if (site.device.kind == Device::Kind::cuda) return make_sparse_cuda(settings, bucket, site);
  return std::make_unique<SparseCompressor>(settings, bucket, site);
}

SparseCompressor::SparseCompressor(const SparseSettings& settings, const Bucket& bucket,
                                   const Site& site)
    : settings_(settings),
      bucket_(bucket),
      site_(site),
      who_("rank " + std::to_string(site.rank) + ", bucket " + std::to_string(bucket.id)),
      memory_(bucket, memory_at(site, settings.memory)),
      received_(static_cast<std::size_t>(site.world)) {}

Leg SparseCompressor::leg(std::uint64_t step, int) const {
  const SparsePlan now = plan(step);
  if (now.dense) return {Reduction::sum, DType::f32, bucket_.elements() * sizeof(float)};
  return {Reduction::gather, DType::f32, now.bound};
}

// NaN when the norm is not finite.
float SparseCompressor::clip_scale(const Turn& turn, std::span<const float> gradient) const {
  if (settings_.clip <= 0) return 1.0f;
  const double squared =
      settings_.clip_global ? turn.squared_norm : squared_norm(gradient.data(), gradient.size());
  return clip_factor(squared, clip_limit(settings_, site_));
}

std::size_t SparseCompressor::encode(const Turn& turn, TensorView gradient, Bytes out) {
  require_f32_cpu(gradient, bucket_.elements(), who_);
  const SparsePlan now = plan(turn.step);
  scale_ = clip_scale(turn, gradient.f32());
  // A scale of NaN makes every element one that the memory refuses.
  sound_ = memory_.step(gradient.f32(), scale_, now.density, survivors_);
  if (!sound_) undo(turn);
  sent_ = survivors_.value;
  if (now.dense) return encode_dense(out);
  FrameHeader header = now.header;
  header.skipped = !sound_;
  const std::size_t bytes = encode_sparse(header, survivors_.index, sent_, settings_.index, out);
  memory_.settle(survivors_, sent_);
  return bytes;
}

std::size_t SparseCompressor::encode_dense(Bytes out) const {
  std::fill(out.begin(), out.end(), std::byte{0});
  const auto put = [&](std::size_t at, float value) {
    std::memcpy(out.data() + at * sizeof(float), &value, sizeof value);
  };
  for (std::size_t i = 0; i < survivors_.size(); ++i) put(survivors_.index[i], survivors_.value[i]);
  // One NaN is enough: every rank sees it in the sum.
  if (!sound_) put(0, std::numeric_limits<float>::quiet_NaN());
  return out.size();
}

Status SparseCompressor::decode(const Turn& turn, const Inbox& inbox, TensorView average) {
  require_f32_cpu(average, bucket_.elements(), who_);
  const SparsePlan now = plan(turn.step);
  return now.dense ? decode_dense(inbox, average.f32()) : decode_frames(now, inbox, average.f32());
}

Status SparseCompressor::decode_dense(const Inbox& inbox, std::span<float> average) const {
  std::memcpy(average.data(), inbox.data.data(), average.size_bytes());
  const bool finite =
      scale_finite(average.data(), average.size(), 1.0f / static_cast<float>(site_.world));
  return finite ? Status{} : Status{Code::skipped, "a rank's gradient was not finite"};
}

Status SparseCompressor::decode_frames(const SparsePlan& plan, const Inbox& inbox,
                                       std::span<float> average) {
  const Status status = open_frames(
      inbox, site_.world, plan.header, [&](std::size_t rank, ConstBytes slot, FrameHeader& header) {
        std::size_t used = 0;
        return decode_sparse(slot, plan.most, header, received_[rank], used);
      });
  if (!status.ok()) return status;
  // All frames are sound. They are added in rank order, so that every rank rounds alike.
  std::fill(average.begin(), average.end(), 0.0f);
  const float share = 1.0f / static_cast<float>(site_.world);
  for (const Sparse& sparse : received_) {
    for (std::size_t i = 0; i < sparse.indices.size(); ++i)
      average[sparse.indices[i]] += sparse.values[i] * share;
  }
  return {};
}

void SparseCompressor::undo(const Turn&) {
  memory_.undo(survivors_);
  survivors_ = {};
}

void SparseCompressor::forget(const Turn& turn, TensorView gradient) {
  undo(turn);
  memory_.forget(gradient.f32(), scale_);
}

void SparseCompressor::visit_state(StateVisitor& visitor) { memory_.visit_state(visitor); }

}  // namespace thinwire
