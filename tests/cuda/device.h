// device.h: what the tests on a GPU share: a stream, vectors in device memory, and a verdict. A test
// that needs a GPU derives from OnDevice.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/verdict.h"

namespace thinwire::testing {

inline constexpr Device gpu{Device::Kind::cuda, 0};

// A vector in device memory. `offset` elements lie before it, so that a test chooses its alignment.
template <typename T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& values, std::size_t offset = 0)
      : buffer_(Place::cuda, (offset + values.size()) * sizeof(T), gpu),
        offset_(offset),
        count_(values.size()) {
    copy_bytes(data(), values.data(), count_ * sizeof(T), {});
    synchronize({});
  }

  T* data() const { return count_ == 0 ? nullptr : buffer_.as<T>() + offset_; }
  std::size_t size() const { return count_; }

  // What it holds after the work that was enqueued on `stream`.
  std::vector<T> download(Stream stream) const {
    std::vector<T> values(count_);
    copy_bytes(values.data(), data(), count_ * sizeof(T), stream);
    synchronize(stream);
    return values;
  }

 private:
  Buffer buffer_;
  std::size_t offset_, count_;
};

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

}  // namespace thinwire::testing
