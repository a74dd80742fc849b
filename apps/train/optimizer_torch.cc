// optimizer_torch.cc: one torch operation per rounding.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/optimizer_torch.h"

#include <torch/utils.h>

#include "thinwire/comm/c10d/device_stream.h"

namespace thinwire::train {
namespace {

torch::Tensor tensor_of(const TensorView& view) {
  const c10::Device device = torch_engine::torch_device(view.device);
  return at::for_blob(view.data, {static_cast<std::int64_t>(view.count)})
      .options(at::TensorOptions().dtype(at::kFloat).device(device))
      .target_device(device)
      .make_tensor();
}

// A divisor on the device: CUDA multiplies by the reciprocal of one on the host.
torch::Tensor number_beside(const torch::Tensor& tensor, float value) {
  return torch::full({1}, value, tensor.options());
}

// Correctly rounded on every device; the CPU's f32 version of torch's sqrt() is not.
torch::Tensor rounded_root(const torch::Tensor& values) {
  return values.to(at::kDouble).sqrt_().to(at::kFloat);
}

}  // namespace

void torch_momentum_step(const SgdRule& rule, const TensorView& average, const TensorView& w,
                         const TensorView& v) {
  torch::Tensor weights = tensor_of(w);
  torch::Tensor d = weights.mul(rule.decay).add_(tensor_of(average));
  if (v.count != 0) {
    torch::Tensor velocity = tensor_of(v);
    velocity.mul_(rule.momentum).add_(d);
    d = rule.nesterov ? d.add_(velocity.mul(rule.momentum)) : velocity.clone();
  }
  weights.sub_(d.mul_(rule.rate));
}

void torch_sgd_step(const SgdRule& rule, const TensorView& average, const TensorView& w,
                    const TensorView& s) {
  torch::Tensor weights = tensor_of(w), step = tensor_of(average);
  if (s.count != 0) {
    torch::Tensor sum = tensor_of(s);
    const torch::Tensor d = weights.mul(rule.decay);
    if (rule.nesterov)
      step = sum.add_(d).mul_(rule.momentum).add(d).add_(step);
    else
      step = sum.mul_(rule.momentum).add_(d).add(step);
  }
  weights.sub_(step.mul(rule.rate));
}

void torch_adam_step(const AdamRule& rule, double rate, std::uint64_t update,
                     const TensorView& average, const TensorView& w, const TensorView& m,
                     const TensorView& v) {
  const AdamFactors f = adam_factors(rule, rate, update);
  torch::Tensor weights = tensor_of(w), first = tensor_of(m), second = tensor_of(v),
                g = tensor_of(average);
  if (rule.decoupled)
    weights.mul_(f.decay);
  else
    g = weights.mul(f.decay).add_(g);
  first.mul_(f.keep1).add_(g.mul(f.take1));
  second.mul_(f.keep2).add_(g.mul(f.take2).mul_(g));
  const torch::Tensor bound =
      rounded_root(second).div_(number_beside(second, f.root)).add_(f.epsilon);
  weights.sub_(first.div(bound).mul_(f.size));
}

void torch_scale(const TensorView& values, float factor) { tensor_of(values).mul_(factor); }

}  // namespace thinwire::train
