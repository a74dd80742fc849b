// coded.cc: memory, codec, frame.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/coded.h"

#include <algorithm>
#include <cmath>

#include "thinwire/core/error.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/wire/block.h"

namespace thinwire {
namespace {

constexpr std::string_view memory_names[] = {"none", "residual", "momentum"};

// Draws of different ranks, steps and buckets must be independent: each gets its own stream.
std::uint64_t stream_of(std::uint64_t seed, std::uint64_t step, const Bucket& bucket,
                        const Site& site) {
  const auto place = std::uint64_t{bucket.id} << 32 | static_cast<std::uint32_t>(site.rank);
  return random_at(random_at(seed, step), place);
}

}  // namespace

std::vector<Option> memory_options(const std::string& fallback) {
  return {
      {"memory", fallback,
       "none, residual (keeps what is not sent), or momentum (the same for the momentum, as dgc "
       "does)"},
      {"momentum", "0.9", "with memory=momentum: of the optimizer, which runs without its own"},
      {"nesterov", "off", "with memory=momentum: Nesterov's form of it: on or off"},
  };
}

MemorySettings read_memory_options(const Options& options) {
  return {static_cast<Memory>(options.choice("memory", memory_names)),
          static_cast<float>(options.number_from("momentum", 0, 1)), options.flag("nesterov")};
}

CodedCompressor::CodedCompressor(std::uint8_t scheme, std::uint64_t seed,
                                 const MemorySettings& memory, std::unique_ptr<Codec> codec,
                                 const Bucket& bucket, const Site& site)
    : scheme_(scheme),
      seed_(seed),
      memory_(memory),
      codec_(std::move(codec)),
      bucket_(bucket),
      site_(site),
      who_("rank " + std::to_string(site.rank) + ", bucket " + std::to_string(bucket.id)) {
  if (!site.sends) return;
  if (memory.kind != Memory::none) v_.resize(bucket.elements());
  if (memory.kind == Memory::momentum) u_.resize(bucket.elements());
}

Leg CodedCompressor::leg(std::uint64_t, int) const {
  return {Reduction::gather, DType::f32, block_header_bytes + codec_->payload_bytes()};
}

FrameHeader CodedCompressor::header(std::uint64_t step) const {
  FrameHeader header;
  header.scheme = scheme_;
  header.bucket = bucket_.id;
  header.step = static_cast<std::uint32_t>(step);
  header.elements = static_cast<std::uint32_t>(bucket_.elements());
  return header;
}

// u = m u + g; the codec is fed u, or with Nesterov m u + g.
std::span<const float> CodedCompressor::with_momentum(std::span<const float> gradient) {
  const float m = memory_.momentum;
  fed_.resize(gradient.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    u_[i] = memory_.nesterov ? m * (u_[i] + gradient[i]) : m * u_[i] + gradient[i];
    fed_[i] = memory_.nesterov ? u_[i] + gradient[i] : u_[i];
  }
  return fed_;
}

std::size_t CodedCompressor::encode(const Turn& turn, TensorView gradient, Bytes out) {
  require_f32_cpu(gradient, bucket_.elements(), who_);
  std::span<const float> fed = gradient.f32();
  FrameHeader head = header(turn.step);
  sent_.clear();
  if (memory_.kind == Memory::momentum) {
    // Momentum is not undone, so nothing that is not finite may enter it.
    if (!std::isfinite(squared_norm(fed.data(), fed.size()))) {
      head.skipped = true;
      return seal_block(head, 0, out);
    }
    fed = with_momentum(fed);
  }
  const Bytes payload = block_payload(out);
  const Coded coded = codec_->encode(fed, v_, stream_of(seed_, turn.step, bucket_, site_), payload);
  sent_.assign(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(coded.bytes));
  head.skipped = !coded.finite;
  if (head.skipped) undo(turn);
  return seal_block(head, coded.bytes, out);
}

Status CodedCompressor::decode(const Turn& turn, const Inbox& inbox, TensorView average) {
  require_f32_cpu(average, bucket_.elements(), who_);
  const FrameHeader expected = header(turn.step);
  std::fill(average.f32().begin(), average.f32().end(), 0.0f);
  const float share = 1.0f / static_cast<float>(site_.world);
  bool skipped = false;
  for (int rank = 0; rank < site_.world; ++rank) {
    inbox.culprit = rank;
    FrameHeader got;
    ConstBytes payload;
    const Status status = open_block(inbox.slot(rank), got, payload);
    if (!status.ok() && status.code != Code::skipped) return status;
    got.skipped = false;
    if (got != expected)
      return {Code::mismatch, "its frame is of another scheme, bucket, step or size"};
    skipped = skipped || status.code == Code::skipped;
    if (skipped) continue;
    if (const Status added = codec_->add(payload, share, average.f32()); !added.ok()) return added;
  }
  inbox.culprit = -1;
  return skipped ? Status{Code::skipped, "a rank's gradient was not finite"} : Status{};
}

// Our own payload, decoded, goes back into the residual.
void CodedCompressor::undo(const Turn&) {
  if (memory_.kind != Memory::none && !sent_.empty()) {
    if (!codec_->add(sent_, 1.0f, v_).ok())
      fail(who_, ": our own payload does not decode; this is a bug of the scheme");
  }
  sent_.clear();
}

void CodedCompressor::visit_state(StateVisitor& visitor) {
  if (!v_.empty()) visit_by_parameter(visitor, bucket_, "v", v_, Share::summed);
  if (!u_.empty()) visit_by_parameter(visitor, bucket_, "u", u_, Share::summed);
  codec_->visit_state(visitor);
}

}  // namespace thinwire
