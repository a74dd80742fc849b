// stream_backend.cc: raw memory as tensors, and the backend's collectives in a given stream.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/c10d/stream_backend.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "thinwire/comm/c10d/device_stream.h"
#include "thinwire/comm/c10d/within.h"
#include "thinwire/comm/cost.h"

namespace thinwire {
namespace {

class BackendStreamGroup final : public StreamGroup {
 public:
  BackendStreamGroup(c10::intrusive_ptr<c10d::Backend> backend, c10::Device device)
      : backend_(std::move(backend)), device_(device) {}

  ~BackendStreamGroup() override {
    if (broken_) return;
    try {
      backend_->shutdown();
    } catch (const std::exception&) {  // nothing is under way any more: nothing is lost
    }
  }

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  std::string name() const override { return backend_->getBackendName(); }
  Traffic traffic() const override { return traffic_; }

  void all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    const c10::StreamGuard guard(torch_engine::torch_stream(device_, stream));
    std::vector<at::Tensor> tensors = {
        tensor(data.data(), data.size() / size_of(dtype), torch_engine::scalar_of(dtype))};
    c10d::AllreduceOptions options;
    options.reduceOp = op == ReduceOp::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
    options.asyncOp = false;
    order(backend_->allreduce(tensors, options));
    count({.kind = Kind::all_reduce, .bytes = data.size(), .dtype = dtype, .op = op}, data.size());
  }

  void all_gather(ConstBytes mine, Bytes slots, Stream stream) override {
    const c10::StreamGuard guard(torch_engine::torch_stream(device_, stream));
    at::Tensor from = tensor(const_cast<std::byte*>(mine.data()), mine.size(), at::kByte);
    at::Tensor to = tensor(slots.data(), slots.size(), at::kByte);
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    order(backend_->_allgather_base(to, from, options));
    count({.kind = Kind::all_gather, .bytes = mine.size()}, mine.size());
  }

  // Without lengths every slot is as long as the others.
  void all_to_all(ConstBytes mine, Bytes slots, Stream stream) override {
    const c10::StreamGuard guard(torch_engine::torch_stream(device_, stream));
    at::Tensor from = tensor(const_cast<std::byte*>(mine.data()), mine.size(), at::kByte);
    at::Tensor to = tensor(slots.data(), slots.size(), at::kByte);
    std::vector<std::int64_t> equal;
    c10d::AllToAllOptions options;
    options.asyncOp = false;
    order(backend_->alltoall_base(to, from, equal, equal, options));
    const std::size_t slot = mine.size() / static_cast<std::size_t>(size());
    count({.kind = Kind::all_to_all, .bytes = slot}, slot);
  }

  void break_off() override {
    if (std::exchange(broken_, true)) return;
    // Its own abort may fail, or wait in turn.
    torch_engine::within(std::chrono::seconds(5), [backend = backend_] {
      backend->abort();
      return true;
    });
  }

 private:
  at::Tensor tensor(std::byte* data, std::size_t elements, at::ScalarType type) const {
    return at::for_blob(data, {static_cast<std::int64_t>(elements)})
        .options(at::TensorOptions().dtype(type).device(device_))
        .target_device(device_)
        .make_tensor();
  }

  // With asyncOp off NCCL works in the current stream itself. Where it does not, wait() makes the
  // current stream wait; the host goes on.
  static void order(const c10::intrusive_ptr<c10d::Work>& work) {
    if (work) work->wait();
  }

  void count(const Call& call, std::size_t bytes) {
    std::vector<std::size_t> sizes(static_cast<std::size_t>(size()), bytes);
    Operands operands;
    operands.mine_sizes = sizes;
    operands.sizes = sizes;
    add(traffic_, nccl_cost(call, operands, rank(), size()));
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::Device device_;
  Traffic traffic_;
  bool broken_ = false;
};

}  // namespace

std::unique_ptr<StreamGroup> make_stream_group(c10::intrusive_ptr<c10d::Backend> backend,
                                               c10::Device device) {
  return std::make_unique<BackendStreamGroup>(std::move(backend), device);
}

}  // namespace thinwire
