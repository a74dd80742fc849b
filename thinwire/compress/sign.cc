// sign.cc: reads each group twice; the second read comes from a cache where the group fits.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/sign.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/coded.h"
#include "thinwire/core/parallel.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/wire/block.h"

namespace thinwire {
namespace {

// The sum of a group is the sum of its blocks, in order. So threads can share a large group, and
// its levels do not depend on their number.
constexpr std::size_t block = std::size_t{1} << 16;
// Below this, waking a thread costs more than it saves.
constexpr std::size_t run_elements = std::size_t{1} << 17;
// 32 KiB of the average: all payloads are added to it while it is in a cache.
constexpr std::size_t tile = std::size_t{1} << 13;

std::size_t bytes_of_bits(std::size_t count) { return (count + 7) / 8; }

std::size_t level_bytes(SignLevels levels) {
  return levels == SignLevels::two_means ? 2 * sizeof(float) : sizeof(float);
}

// Whether the bits of a group have ones, and zeros.
struct Sides {
  bool ones = false, zeros = false;
};

// Requires zero padding.
Sides sides_of(ConstBytes bits, std::size_t count) {
  std::uint64_t some = 0, every = ~std::uint64_t{0};
  std::size_t at = 0;
  for (; count / 8 - at >= 8; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bits.data() + at, sizeof word);
    some |= word;
    every &= word;
  }
  Sides sides{some != 0, every != ~std::uint64_t{0}};
  for (; at < bits.size(); ++at) {
    const auto byte = std::to_integer<unsigned>(bits[at]);
    const std::size_t used = std::min<std::size_t>(8, count - 8 * at);
    sides.ones = sides.ones || byte != 0;
    sides.zeros = sides.zeros || byte != (1u << used) - 1;
  }
  return sides;
}

bool padding_is_zero(ConstBytes bits, std::size_t count) {
  return count % 8 == 0 || std::to_integer<unsigned>(bits.back()) >> count % 8 == 0;
}

// Calls body(first, count) for the blocks of a group. Most groups are one block and need no
// parallel loop.
template <typename Body>
void for_blocks(std::size_t count, const Body& body) {
  if (count <= block) return body(0, count);
  parallel_for((count + block - 1) / block,
               [&](std::size_t k) { body(k * block, std::min(block, count - k * block)); });
}

SignSums scan_group(const float* g, const float* r, std::size_t count, std::uint8_t* bits) {
  if (count <= block) return sign_scan(g, r, count, bits);
  std::vector<SignSums> parts((count + block - 1) / block);
  for_blocks(count, [&](std::size_t at, std::size_t size) {
    parts[at / block] = sign_scan(g + at, r == nullptr ? r : r + at, size, bits + at / 8);
  });
  SignSums sums;
  for (const SignSums& part : parts)
    sums = {sums.high + part.high, sums.low + part.low, sums.lows + part.lows};
  return sums;
}

}  // namespace

void cut_evenly(std::size_t first, std::size_t count, std::size_t longest,
                std::vector<SignGroup>& groups) {
  const std::size_t parts = (count + longest - 1) / longest;
  for (std::size_t k = 0; k < parts; ++k) {
    const std::size_t from = count * k / parts, to = count * (k + 1) / parts;
    groups.push_back({first + from, to - from});
  }
}

std::size_t sign_frame_bytes(SignLevels levels, const std::vector<SignGroup>& groups) {
  return block_header_bytes + SignCodec::payload_bytes(levels, groups);
}

std::unique_ptr<Compressor> make_sign_compressor(std::uint8_t scheme, SignLevels levels,
                                                 const std::vector<SignGroup>& groups,
                                                 const Options& options, const Bucket& bucket,
                                                 const Site& site) {
  if (site.device.kind == Device::Kind::cuda)
    return make_coded_cuda(scheme, 0, read_memory_options(options),
                           sign_codec_cuda(levels, groups, site.world, site.device), bucket, site);
  return std::make_unique<CodedCompressor>(scheme, 0, read_memory_options(options),
                                           std::make_unique<SignCodec>(levels, groups), bucket,
                                           site);
}

std::size_t SignCodec::payload_bytes(SignLevels levels, const std::vector<SignGroup>& groups) {
  std::size_t bytes = groups.size() * level_bytes(levels);
  for (const SignGroup& group : groups) bytes += bytes_of_bits(group.count);
  return bytes;
}

SignCodec::SignCodec(SignLevels levels, const std::vector<SignGroup>& groups)
    : levels_(levels), bytes_(payload_bytes(levels, groups)) {
  std::size_t bits = groups.size() * level_bytes(levels), in_run = run_elements;
  for (const SignGroup& group : groups) {
    if (in_run >= run_elements) {
      runs_.push_back(places_.size());
      in_run = 0;
    }
    in_run += group.count;
    places_.push_back({group, places_.size() * level_bytes(levels), bits});
    bits += bytes_of_bits(group.count);
  }
  runs_.push_back(places_.size());
}

Coded SignCodec::encode(std::span<const float> gradient, std::span<float> residual, std::uint64_t,
                        Bytes out) {
  const std::size_t runs = runs_.size() - 1;
  std::vector<char> sound(runs, 1);
  float* const r = residual.empty() ? nullptr : residual.data();
  parallel_for(runs, [&](std::size_t run) {
    for (std::size_t k = runs_[run]; k < runs_[run + 1]; ++k) {
      if (!encode_group(places_[k], gradient.data(), r, out)) sound[run] = 0;
    }
  });
  return {bytes_, std::find(sound.begin(), sound.end(), 0) == sound.end()};
}

bool SignCodec::encode_group(const Place& place, const float* g, float* r, Bytes out) const {
  const auto [first, count] = place.group;
  g += first;
  if (r != nullptr) r += first;
  auto* bits = reinterpret_cast<std::uint8_t*>(out.data() + place.bits);
  const SignSums sums = scan_group(g, r, count, bits);
  const bool sound = std::isfinite(sums.high) && std::isfinite(sums.low);
  const SignPair levels = sound ? sign_levels(levels_, sums, count) : SignPair{};
  write_levels(levels, out.data() + place.levels);
  // Bits without a meaning are zero, so that a gradient has only one payload.
  if (levels.low == 0) std::fill_n(bits, bytes_of_bits(count), std::uint8_t{0});
  if (r == nullptr) return sound;
  for_blocks(count, [&](std::size_t at, std::size_t size) {
    if (sound) {
      sign_settle(g + at, r + at, size, levels.high, levels.low);
    } else {
      add_within_limit(g + at, r + at, size);
    }
  });
  return sound;
}

void SignCodec::write_levels(const SignPair& levels, std::byte* to) const {
  std::memcpy(to, &levels.high, sizeof levels.high);
  if (levels_ == SignLevels::two_means)
    std::memcpy(to + sizeof levels.high, &levels.low, sizeof levels.low);
}

// Refuses everything that an encoder would write differently.
Status SignCodec::read_group(const Place& place, ConstBytes payload, SignPair& levels) const {
  const std::size_t count = place.group.count;
  const ConstBytes bits = payload.subspan(place.bits, bytes_of_bits(count));
  if (!padding_is_zero(bits, count)) return {Code::bad_value, "signs: set bits in the padding"};
  const Sides sides = sides_of(bits, count);
  std::memcpy(&levels.high, payload.data() + place.levels, sizeof levels.high);
  if (levels_ == SignLevels::magnitude) {
    levels.low = -levels.high;
  } else {
    std::memcpy(&levels.low, payload.data() + place.levels + sizeof levels.high, sizeof levels.low);
  }
  if (!sign_levels_fit(levels_, levels, sides.ones, sides.zeros))
    return {Code::bad_value, "signs: levels that do not fit their bits"};
  return {};
}

Status SignCodec::add(ConstBytes payload, float share, std::span<float> target) const {
  if (payload.size() != bytes_)
    return {Code::mismatch, "signs: payload is not as long as its groups"};
  for (const Place& place : places_) {
    SignPair levels;
    if (const Status status = read_group(place, payload, levels); !status.ok()) return status;
    const auto* bits = reinterpret_cast<const std::uint8_t*>(payload.data() + place.bits);
    sign_add(bits, place.group.count, share * levels.high, share * levels.low,
             target.data() + place.group.first);
  }
  return {};
}

// Reads the levels of all payloads first, so that nothing is added before it is checked.
void SignCodec::average_group(const Place& place, std::span<const ConstBytes> payloads, float share,
                              float* target, std::vector<SignPair>& levels, Fault& fault) const {
  for (int k = 0; k < fault.payload; ++k) {
    const auto at = static_cast<std::size_t>(k);
    const Status status = read_group(place, payloads[at], levels[at]);
    if (!status.ok()) fault = {k, status};
  }
  for (std::size_t i = 0; i < place.group.count; i += tile) {
    const std::size_t size = std::min(tile, place.group.count - i);
    float* sum = target + place.group.first + i;
    std::fill_n(sum, size, 0.0f);
    for (std::size_t k = 0; k < static_cast<std::size_t>(fault.payload); ++k) {
      const auto* bits = reinterpret_cast<const std::uint8_t*>(payloads[k].data() + place.bits);
      sign_add(bits + i / 8, size, share * levels[k].high, share * levels[k].low, sum);
    }
  }
}

Status SignCodec::average(std::span<const ConstBytes> payloads, float share,
                          std::span<float> target, int& culprit) const {
  const int all = static_cast<int>(payloads.size());
  for (culprit = 0; culprit < all; ++culprit) {
    if (payloads[static_cast<std::size_t>(culprit)].size() != bytes_)
      return {Code::mismatch, "signs: payload is not as long as its groups"};
  }
  const std::size_t runs = runs_.size() - 1;
  std::vector<Fault> faults(runs_.size(), Fault{all, {}});  // the last one stays without
  parallel_for(runs, [&](std::size_t run) {
    std::vector<SignPair> levels(payloads.size());
    for (std::size_t k = runs_[run]; k < runs_[run + 1]; ++k)
      average_group(places_[k], payloads, share, target.data(), levels, faults[run]);
  });
  const Fault first = std::ranges::min(faults, {}, &Fault::payload);
  culprit = first.payload;
  return first.status;
}

}  // namespace thinwire
