// fuzz_threshold.cc: decoding a threshold payload never over-reads, and gives what the reference
// decoder says: every element is +tau, -tau or nothing.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "fuzz/fuzz.h"
#include "tests/wire/reference_decoder.h"
#include "thinwire/compress/threshold_codec.h"

namespace thinwire {
namespace {

// Layout, two thresholds, two lengths; with one layer, one of each.
std::size_t head_of(std::size_t layers) { return 4 + 6 * layers; }

void check(const ThresholdCodec& codec, ConstBytes payload, std::span<const std::size_t> layers) {
  std::size_t count = 0;
  for (const std::size_t layer : layers) count += layer;
  std::vector<float> said(count);
  if (!codec.add(payload, 1.0f, said).ok()) return;
  std::size_t at = head_of(layers.size()), first = 0;
  for (std::size_t k = 0; k < layers.size(); ++k) {
    float tau = 0;
    std::uint16_t length = 0;
    std::memcpy(&tau, payload.data() + 4 + 4 * k, sizeof tau);
    std::memcpy(&length, payload.data() + 4 + 4 * layers.size() + 2 * k, sizeof length);
    const auto quanta = reference::quanta(payload.subspan(at, length), layers[k]);
    fuzz::require(quanta.has_value(), "the reference decoder accepts the block");
    for (std::size_t i = 0; i < layers[k]; ++i)
      fuzz::require(said[first + i] == tau * static_cast<float>((*quanta)[i]),
                    "an element is what the reference decoder says");
    at += length;
    first += layers[k];
  }
}

}  // namespace
}  // namespace thinwire

// Input: u8 elements of the first layer, u8 of the second, then the payload. It is tried unchanged,
// and with a head that fits: then its blocks are read.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  Bucket bucket;
  std::vector<std::size_t> layers;
  for (const std::size_t count : {input.take<std::uint8_t>(), input.take<std::uint8_t>()}) {
    bucket.parameters.push_back({std::to_string(layers.size()), bucket.elements(), count, {}});
    if (count > 0) layers.push_back(count);
  }
  const ThresholdCodec codec({.tau = 1}, bucket);
  check(codec, input.rest(), layers);
  std::vector<std::byte> fitting(input.rest().begin(), input.rest().end());
  const std::size_t head = head_of(layers.size());
  if (layers.empty() || fitting.size() < head) return 0;
  const std::uint32_t layout = 2;
  const float tau = 1;
  std::memcpy(fitting.data(), &layout, sizeof layout);
  std::size_t left = fitting.size() - head;
  for (std::size_t k = 0; k < layers.size(); ++k) {
    std::byte* const at = fitting.data() + 4 + 4 * layers.size() + 2 * k;
    std::memcpy(fitting.data() + 4 + 4 * k, &tau, sizeof tau);
    std::uint16_t length = 0;
    std::memcpy(&length, at, sizeof length);
    length = static_cast<std::uint16_t>(k + 1 == layers.size() ? left : length % (left + 1));
    std::memcpy(at, &length, sizeof length);
    left -= length;
  }
  check(codec, fitting, layers);
  return 0;
}
