// device.h: what the tests on a GPU share: a stream, arrays in device memory between guards, a
// verdict, and elements of every type. A test that needs a GPU derives from OnDevice.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/random.h"
#include "thinwire/core/verdict.h"
#include "thinwire/kernels/cast.h"

namespace thinwire {

inline constexpr Device gpu{Device::Kind::cuda, 0};

// A stream of its own, so that work that forgets its stream shows.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) {
      if (std::getenv("THINWIRE_GPU") != nullptr) FAIL() << "this machine has no GPU";
      GTEST_SKIP() << "this machine has no GPU";
    }
    cudaStream_t made = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), cudaSuccess);
    stream = {made};
  }
  void TearDown() override {
    if (stream.handle == nullptr) return;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    cudaStreamDestroy(static_cast<cudaStream_t>(stream.handle));
  }

  Stream stream;
};

// Device memory that tests lend each other: to allocate and free it takes longer than most tests'
// kernels. Only memory of just this size fits, so that compute-sanitizer sees where an array ends.
class LentMemory {
 public:
  explicit LentMemory(std::size_t bytes) {
    const auto found = idle().find(bytes);
    buffer_ = found == idle().end() ? Buffer(Place::cuda, bytes, gpu) : std::move(found->second);
    if (found != idle().end()) idle().erase(found);
  }
  ~LentMemory() {
    constexpr std::size_t largest = std::size_t{1} << 20;
    if (buffer_.size() == 0 || buffer_.size() > largest) return;
    cudaDeviceSynchronize();  // as cudaFree() does
    idle().emplace(buffer_.size(), std::move(buffer_));
  }
  LentMemory(LentMemory&&) = default;
  LentMemory& operator=(LentMemory&&) = delete;
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  const Buffer* operator->() const { return &buffer_; }

 private:
  static std::multimap<std::size_t, Buffer>& idle() {
    static auto* const all = new std::multimap<std::size_t, Buffer>;  // outlives the device
    return *all;
  }
  Buffer buffer_;
};

// An array in device memory, `offset` elements after an aligned address, between guards.
template <typename T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& values, std::size_t offset = 0)
      : buffer_((2 * margin + offset + values.size()) * sizeof(T)),
        start_(margin + offset),
        count_(values.size()) {
    std::vector<std::byte> all(buffer_->size(), guard);
    if (count_ > 0) std::memcpy(all.data() + start_ * sizeof(T), values.data(), bytes());
    copy_bytes(buffer_->data(), all.data(), all.size(), {});
    synchronize({});
  }

  T* data() const { return buffer_->as<T>() + start_; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

  // What it holds after the work that was enqueued on `stream`. The guards must be as they were.
  std::vector<T> download(Stream stream) const {
    std::vector<std::byte> all(buffer_->size());
    copy_bytes(all.data(), buffer_->data(), all.size(), stream);
    synchronize(stream);
    const std::span<const std::byte> view(all);
    const auto untouched = [](std::span<const std::byte> part) {
      return std::all_of(part.begin(), part.end(), [](std::byte b) { return b == guard; });
    };
    EXPECT_TRUE(untouched(view.first(start_ * sizeof(T)))) << "written before the array";
    EXPECT_TRUE(untouched(view.subspan(start_ * sizeof(T) + bytes()))) << "written after it";
    std::vector<T> values(count_);
    if (count_ > 0) std::memcpy(values.data(), all.data() + start_ * sizeof(T), bytes());
    return values;
  }

 private:
  static constexpr std::size_t margin = 64;
  static constexpr std::byte guard{0xa5};

  LentMemory buffer_;
  std::size_t start_, count_;
};

// A verdict in device memory.
class VerdictOnGpu {
 public:
  explicit VerdictOnGpu(const Verdict& verdict = {}) : memory_({verdict}) {}
  Verdict* data() const { return memory_.data(); }
  Verdict download(Stream stream) const { return memory_.download(stream)[0]; }

 private:
  OnGpu<Verdict> memory_;
};

// Elements of a type as bytes, as the functions that take a DType expect them.
using Elements = std::vector<std::byte>;

inline constexpr DType gradient_types[] = {DType::f32, DType::f16, DType::bf16};

inline Elements elements_of(DType type, const std::vector<float>& values) {
  Elements result(values.size() * size_of(type));
  if (type == DType::f32 && !values.empty()) {  // NaNs keep their bits
    std::memcpy(result.data(), values.data(), result.size());
  } else {
    (void)cast_any(DType::f32, values.data(), type, result.data(), values.size(), 1.0f);
  }
  return result;
}

inline std::vector<float> floats_of(DType type, const Elements& elements) {
  std::vector<float> result(elements.size() / size_of(type));
  (void)cast_any(type, elements.data(), DType::f32, result.data(), result.size(), 1.0f);
  return result;
}

// The bits are the same, but for the payloads of f32 NaNs, which a GPU does not keep.
inline bool same_elements(DType type, const Elements& a, const Elements& b) {
  if (a == b) return true;
  if (type != DType::f32 || a.size() != b.size()) return false;
  for (std::size_t at = 0; at < a.size(); at += sizeof(float)) {
    float x = 0, y = 0;
    std::memcpy(&x, a.data() + at, sizeof(float));
    std::memcpy(&y, b.data() + at, sizeof(float));
    if (std::bit_cast<std::uint32_t>(x) != std::bit_cast<std::uint32_t>(y) &&
        !(std::isnan(x) && std::isnan(y)))
      return false;
  }
  return true;
}

// Random bit patterns: every exponent, denormals, infinities, NaNs with payloads.
inline std::vector<float> wild_floats(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random_at(seed, i) >> 32));
  return values;
}

inline constexpr std::size_t large_odd_size = (std::size_t{1} << 24) + 3;

}  // namespace thinwire
