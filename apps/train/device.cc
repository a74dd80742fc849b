// device.cc: counts and assigns GPUs, and says who works on them.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/cuda.h>

#include <string>

#include "apps/verb.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/buffer.h"

namespace thinwire::train {
namespace {

using apps::BadInput;

bool needs_gpu(const Settings& settings) { return settings.cuda || settings.kind == Engine::nccl; }

std::string why_late_on_host(const Settings& settings) {
  if (!settings.delayed) return "";
  if (settings.delayed->correction == Correction::published)
    return "the published correction has no CUDA version";
  return settings.delayed->measure ? "a measured delay has no CUDA version" : "";
}

int count_gpus(const Settings& settings) {
  const std::string flag = settings.cuda ? "--device cuda: " : "--engine nccl: ";
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    throw BadInput(flag +
                   "this thinwire was built with a torch without CUDA; build it with one that has "
                   "CUDA, or use --device cpu and --engine gloo");
  }
  const c10::DeviceIndex count = torch::cuda::device_count();
  if (count == 0)
    throw BadInput(flag + "torch finds no GPU here; nvidia-smi tells whether there is one");
  return count;
}

}  // namespace

Seat seat_of(const Settings& settings) {
  const bool stays = settings.cuda ? why_on_host(settings).empty()
                                   : settings.streams && why_late_on_host(settings).empty();
  return stays ? Seat::model : Seat::host;
}

std::string why_on_host(const Settings& settings) {
  if (!settings.cuda) return "";
  if (settings.virtual_workers > 0) return "virtual workers exchange there";
  if (std::string why = why_late_on_host(settings); !why.empty()) return why;
  if (const std::string why = why_on_host(settings.config); !why.empty())
    return "scheme " + settings.config.scheme + ": " + why;
  return has_cuda() ? "" : "this thinwire was built without nvcc";
}

int gpu_of(const Settings& settings, const Place& place) {
  return needs_gpu(settings) ? place.local_rank % count_gpus(settings) : -1;
}

void check_gpus(const Settings& settings) {
  if (!needs_gpu(settings)) return;
  const int count = count_gpus(settings);
  if (settings.kind != Engine::nccl || settings.processes() <= count) return;
  throw BadInput("--engine nccl: NCCL needs one GPU per process, but there are " +
                 std::to_string(settings.processes()) + " processes and " + std::to_string(count) +
                 (count == 1 ? " GPU" : " GPUs") +
                 "; use --engine gloo, whose workers may share GPUs, or start fewer workers");
}

}  // namespace thinwire::train
