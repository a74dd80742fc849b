// whole.cc: converts floats and small integers to i32 and back.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/whole.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "thinwire/core/half.h"

namespace thinwire {
namespace {

// The bits of floats, read as i32, are in order, except that negative floats are reversed.
std::int32_t turned(std::int32_t bits) { return bits >= 0 ? bits : bits ^ 0x7fffffff; }

std::int32_t whole_of(float value) {
  return value == value ? turned(std::bit_cast<std::int32_t>(value)) : 0x7fc00000;
}

float float_of(std::int32_t number) { return std::bit_cast<float>(turned(number)); }

template <typename T, typename Convert>
void each_to(ConstBytes from, std::span<std::int32_t> numbers, Convert convert) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    T value;
    std::memcpy(&value, from.data() + i * sizeof(T), sizeof(T));
    numbers[i] = convert(value);
  }
}

template <typename T, typename Convert>
void each_from(std::span<const std::int32_t> numbers, Bytes to, Convert convert) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const T value = convert(numbers[i]);
    std::memcpy(to.data() + i * sizeof(T), &value, sizeof(T));
  }
}

std::int8_t cut_off(std::int32_t number) {
  return static_cast<std::int8_t>(std::clamp(number, -128, 127));
}

}  // namespace

bool needs_whole(DType dtype, ReduceOp op) {
  const bool integer = dtype == DType::i8 || dtype == DType::i32;
  return op == ReduceOp::max ? !integer : dtype == DType::i8;
}

void to_whole(ConstBytes from, DType dtype, std::span<std::int32_t> numbers) {
  using Half = std::uint16_t;
  switch (dtype) {
    case DType::f32:
      return each_to<float>(from, numbers, whole_of);
    case DType::f16:
      return each_to<Half>(from, numbers, [](Half bits) { return whole_of(from_f16(bits)); });
    case DType::bf16:
      return each_to<Half>(from, numbers, [](Half bits) { return whole_of(from_bf16(bits)); });
    case DType::i8:
      return each_to<std::int8_t>(
          from, numbers, [](std::int8_t value) { return static_cast<std::int32_t>(value); });
    case DType::i32:
      return each_to<std::int32_t>(from, numbers, [](std::int32_t value) { return value; });
  }
}

void from_whole(std::span<const std::int32_t> numbers, DType dtype, Bytes to) {
  using Half = std::uint16_t;
  switch (dtype) {
    case DType::f32:
      return each_from<float>(numbers, to, float_of);
    case DType::f16:
      return each_from<Half>(numbers, to, [](std::int32_t n) { return to_f16(float_of(n)); });
    case DType::bf16:
      return each_from<Half>(numbers, to, [](std::int32_t n) { return to_bf16(float_of(n)); });
    case DType::i8:
      return each_from<std::int8_t>(numbers, to, cut_off);
    case DType::i32:
      return each_from<std::int32_t>(numbers, to, [](std::int32_t number) { return number; });
  }
}

}  // namespace thinwire
