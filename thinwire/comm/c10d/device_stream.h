// device_stream.h: devices, types and streams of CUDA as torch sees them, without CUDA's headers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>

#include "thinwire/core/device.h"
#include "thinwire/core/dtype.h"

namespace thinwire::torch_engine {

inline c10::ScalarType scalar_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return c10::kFloat;
    case DType::f16:
      return c10::kHalf;
    case DType::bf16:
      return c10::kBFloat16;
    case DType::i8:
      return c10::kChar;
    case DType::i32:
      return c10::kInt;
  }
  return c10::kByte;
}

inline Device device_of(c10::Device device) {
  if (device.is_cpu()) return {};
  return {Device::Kind::cuda, device.index()};
}

inline c10::Device torch_device(Device device) {
  if (device.kind == Device::Kind::cpu) return c10::Device(c10::kCPU);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device.index));
}

// torch's name for a stream that it has not made: as c10::cuda::getStreamFromExternal() has it, the
// id is the handle itself, whose last bit is 0.
inline c10::Stream torch_stream(c10::Device device, Stream stream) {
  if (device.is_cpu() || stream.handle == nullptr) return c10::Stream(c10::Stream::DEFAULT, device);
  return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<std::intptr_t>(stream.handle));
}

inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace thinwire::torch_engine
