// csc_cuda.cc: device memory for a bucket's momentum, residual and sent chunks, and its state.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/memory/csc_cuda.h"

namespace thinwire {

CscCudaMemory::CscCudaMemory(const Bucket& bucket, const CscGrid& grid, const MemoryRule& rule,
                             const SummedValues& values, bool norms, Device device)
    : bucket_(bucket) {
  const auto room = [device](std::size_t count, std::size_t size) {
    return Buffer(Place::cuda, count * size, device);
  };
  const std::size_t chunks = grid.count();
  const std::size_t blocks = norms ? (grid.chunk + csc_block - 1) / csc_block : 0;
  if (has_residual(rule.accumulate)) v_ = room(grid.elements, sizeof(float));
  if (has_momentum(rule.accumulate)) u_ = room(grid.elements, sizeof(float));
  if (has_residual(rule.accumulate)) sent_ = room(chunks, sizeof(Sent));
  block_norms_ = room(chunks * blocks, sizeof(double));
  unsound_ = room(1, sizeof(std::uint32_t));

  on_.rule = rule;
  on_.values = values.rule();
  on_.elements = static_cast<std::uint32_t>(grid.elements);
  on_.chunk = static_cast<std::uint32_t>(grid.chunk);
  on_.chunks = static_cast<std::uint32_t>(chunks);
  on_.blocks = static_cast<std::uint32_t>(blocks);
  on_.u = u_.as<float>();
  on_.v = v_.as<float>();
  on_.sent = sent_.as<Sent>();
  on_.block_norms = block_norms_.as<double>();
  on_.unsound = unsound_.as<std::uint32_t>();
}

void CscCudaMemory::take_in(const TensorView& gradient, Verdict* verdict, Stream stream) {
  csc_take_in(on_, gradient, verdict, stream);
  zero_bytes(sent_.data(), sent_.size(), stream);
}

void CscCudaMemory::send(const CscPicks& picks, std::size_t count, Velocity velocity,
                         const TensorView& gradient, std::byte* out, Stream stream) {
  csc_send(on_, picks, count, velocity == Velocity::mask ? Sent::masked : Sent::kept, gradient, out,
           stream);
}

void CscCudaMemory::condemn(float* out, Stream stream) { csc_condemn(on_, out, stream); }

void CscCudaMemory::receive(const CscPicks& picks, std::size_t count, const std::byte* sum,
                            const TensorView& average, Verdict* verdict, Stream stream) const {
  csc_receive(on_, picks, count, sum, average, verdict, stream);
}

void CscCudaMemory::conclude(const TensorView& gradient, float fill, const Verdict* verdict,
                             Stream stream) {
  csc_conclude(on_, gradient, fill, verdict, stream);
}

void CscCudaMemory::visit_state(StateVisitor& visitor, Stream stream) {
  csc_settle(on_, stream);
  zero_bytes(sent_.data(), sent_.size(), stream);
  const auto visit = [&](const Buffer& buffer, const char* name) {
    if (buffer.size() == 0) return;
    std::vector<float> host(buffer.size() / sizeof(float));
    copy_bytes(host.data(), buffer.data(), buffer.size(), stream);
    synchronize(stream);
    visit_by_parameter(visitor, bucket_, name, host, Share::summed);
    copy_bytes(buffer.data(), host.data(), buffer.size(), stream);
    synchronize(stream);
  };
  visit(u_, "u");
  visit(v_, "v");
}

}  // namespace thinwire
