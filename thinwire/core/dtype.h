// dtype.h: the element types of gradients and payloads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

enum class DType : std::uint8_t { f32, f16, bf16, i8, i32 };

constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::i8:
      return 1;
  }
  return 0;
}

// Whether gradients may have this type.
constexpr bool is_gradient(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::i8:
      return "i8";
    case DType::i32:
      return "i32";
  }
  return "?";
}

}  // namespace thinwire
