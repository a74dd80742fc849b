// ranged.cc: splits a bucket into pieces for threads and tiles for caches.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/ranged.h"

#include <algorithm>
#include <atomic>

#include "thinwire/core/parallel.h"

namespace thinwire {
namespace {

constexpr std::size_t least_per_piece = std::size_t{1} << 17;  // below, waking a thread costs more
constexpr std::size_t tile = std::size_t{1} << 13;             // 32 KiB of floats

// Calls body(range) for equal shares of whole grains, one per thread.
template <typename Body>
void for_pieces(std::size_t elements, std::size_t grain, const Body& body) {
  const std::size_t pieces =
      std::clamp<std::size_t>(elements / least_per_piece, 1, static_cast<std::size_t>(threads()));
  const std::size_t grains = (elements + grain - 1) / grain;
  parallel_for(pieces, [&](std::size_t piece) {
    const std::size_t from = grains * piece / pieces * grain;
    const std::size_t to = std::min(elements, grains * (piece + 1) / pieces * grain);
    if (from < to) body(Range{from, to - from});
  });
}

const std::uint8_t* bytes_of(ConstBytes payload) {
  return reinterpret_cast<const std::uint8_t*>(payload.data());
}

constexpr Status wrong_length{Code::truncated, "its payload is not as long as the bucket asks"};
constexpr Status wrong_value{Code::bad_value, "its payload has a number that no encoder writes"};

}  // namespace

Coded RangedCodec::encode(std::span<const float> gradient, std::span<float> residual,
                          std::uint64_t seed, Bytes out) {
  const DrawKey key = draw_key(seed);
  std::atomic<bool> finite = true;
  for_pieces(elements_, grain_, [&](Range range) {
    if (!encode_range(range, gradient.data(), residual.empty() ? nullptr : residual.data(), key,
                      reinterpret_cast<std::uint8_t*>(out.data())))
      finite = false;
  });
  return {payload_bytes(), finite};
}

Status RangedCodec::add(ConstBytes payload, float share, std::span<float> target) const {
  if (payload.size() != payload_bytes() || target.size() != elements_) return wrong_length;
  std::atomic<bool> sound = true;
  for_pieces(elements_, grain_, [&](Range range) {
    if (!add_range(range, bytes_of(payload), share, target.data())) sound = false;
  });
  return sound ? Status{} : wrong_value;
}

Status RangedCodec::average(std::span<const ConstBytes> payloads, float share,
                            std::span<float> target, int& culprit) const {
  const int ranks = static_cast<int>(payloads.size());
  for (culprit = 0; culprit < ranks; ++culprit) {
    if (payloads[static_cast<std::size_t>(culprit)].size() != payload_bytes()) return wrong_length;
  }
  std::atomic<int> worst = ranks;
  const std::size_t extent = tile / grain_ * grain_;  // no grain is longer than a tile
  for_pieces(elements_, grain_, [&](Range piece) {
    for (std::size_t at = 0; at < piece.count; at += extent) {
      const Range range{piece.first + at, std::min(extent, piece.count - at)};
      std::fill_n(target.data() + range.first, range.count, 0.0f);
      for (int rank = 0; rank < ranks; ++rank) {
        const ConstBytes payload = payloads[static_cast<std::size_t>(rank)];
        if (!add_range(range, bytes_of(payload), share, target.data())) worst = rank;
      }
    }
  });
  culprit = worst;
  return worst == ranks ? Status{} : wrong_value;
}

}  // namespace thinwire
