// mirror.cc: no copies, or pinned buffers, a side stream, and a thread that waits for it.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/mirror.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "thinwire/comm/c10d/device_stream.h"

namespace thinwire::train {
namespace {

using Tensors = std::vector<torch::Tensor>;
using Memories = std::vector<Tensors>;

TensorView view_of(const torch::Tensor& flat) {
  return {flat.data_ptr(), static_cast<std::size_t>(flat.numel()), DType::f32,
          torch_engine::device_of(flat.device())};
}

class OwnMemory final : public Mirror {
 public:
  OwnMemory(Tensors weights, Memories gradients)
      : weights_(std::move(weights)), gradients_(std::move(gradients)) {}

  TensorView weights(std::size_t bucket) override { return view_of(weights_[bucket]); }
  void fetch(std::uint16_t bucket, const Ready& ready) override { ready(bucket); }
  void settle() override {}
  void push_weights() override {}

 private:
  TensorView gradient_of(std::size_t memory, std::size_t bucket) override {
    return view_of(gradients_[memory][bucket]);
  }

  Tensors weights_;
  Memories gradients_;
};

// Pinned, so that copies overlap with work of the device and the host.
Tensors twins_of(const Tensors& tensors) {
  Tensors twins;
  for (const torch::Tensor& tensor : tensors) {
    const auto options = torch::TensorOptions().dtype(tensor.dtype()).pinned_memory(true);
    twins.push_back(torch::empty(tensor.sizes(), options));
    twins.back().copy_(tensor);
  }
  return twins;
}

Memories twins_of(const Memories& memories) {
  Memories twins;
  for (const Tensors& memory : memories) twins.push_back(twins_of(memory));
  return twins;
}

class PinnedTwins final : public Mirror {
 public:
  PinnedTwins(Tensors weights, Memories gradients)
      : device_(weights[0].device()),
        devices_(device_.type()),
        side_(devices_.getStreamFromGlobalPool(device_)),
        weights_(std::move(weights)),
        gradients_(std::move(gradients)),
        host_weights_(twins_of(weights_)),
        host_gradients_(twins_of(gradients_)),
        thread_([this] { loop(); }) {}

  ~PinnedTwins() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      coming_.clear();
    }
    changed_.notify_all();
    thread_.join();
  }
  PinnedTwins(const PinnedTwins&) = delete;
  PinnedTwins& operator=(const PinnedTwins&) = delete;

  TensorView weights(std::size_t bucket) override { return view_of(host_weights_[bucket]); }

  void fetch(std::uint16_t bucket, const Ready& ready) override {
    c10::Event complete(device_.type()), here(device_.type());
    complete.record(devices_.getStream(device_));
    complete.block(side_);
    {
      const c10::StreamGuard guard(side_);
      host_gradients_[memory()][bucket].copy_(gradients_[memory()][bucket], /*non_blocking=*/true);
    }
    here.record(side_);
    {
      const std::lock_guard lock(mutex_);
      coming_.push_back({bucket, std::move(here), ready});
    }
    changed_.notify_all();
  }

  void settle() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return coming_.empty() && !busy_; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  void push_weights() override {
    for (std::size_t i = 0; i < weights_.size(); ++i)
      weights_[i].copy_(host_weights_[i], /*non_blocking=*/true);
  }

 private:
  struct Coming {
    std::uint16_t bucket;
    c10::Event here;
    Ready ready;
  };

  TensorView gradient_of(std::size_t memory, std::size_t bucket) override {
    return view_of(host_gradients_[memory][bucket]);
  }

  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ending_ || !coming_.empty(); });
      if (ending_) return;
      const Coming next = std::move(coming_.front());
      coming_.pop_front();
      busy_ = true;
      lock.unlock();
      std::exception_ptr error = take(next);
      lock.lock();
      busy_ = false;
      if (error && !error_) error_ = std::move(error);
      changed_.notify_all();
    }
  }

  static std::exception_ptr take(const Coming& next) {
    try {
      next.here.synchronize();
      next.ready(next.bucket);
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  const torch::Device device_;
  const c10::impl::VirtualGuardImpl devices_;
  const c10::Stream side_;
  Tensors weights_;
  Memories gradients_;
  Tensors host_weights_;
  Memories host_gradients_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Coming> coming_;
  bool busy_ = false, ending_ = false;
  std::exception_ptr error_;  // the first error since the last settle()

  std::thread thread_;
};

}  // namespace

std::unique_ptr<Mirror> make_mirror(Tensors weights, Memories gradients, Seat seat) {
  if (weights.empty() || weights[0].device().is_cpu() || seat == Seat::model)
    return std::make_unique<OwnMemory>(std::move(weights), std::move(gradients));
  return std::make_unique<PinnedTwins>(std::move(weights), std::move(gradients));
}

}  // namespace thinwire::train
