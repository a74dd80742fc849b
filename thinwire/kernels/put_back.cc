// put_back.cc: arrays one after another in one copy.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/put_back.h"

namespace thinwire {

void KeptCopy::keep(std::span<const Buffer* const> arrays, Device device, Stream stream) {
  std::size_t bytes = 0;
  for (const Buffer* array : arrays) bytes += array->size();
  if (copy_.size() != bytes) copy_ = Buffer(place_on(device), bytes, device);
  std::byte* to = copy_.data();
  for (const Buffer* array : arrays) {
    if (array->size() == 0) continue;
    copy_bytes(to, array->data(), array->size(), stream);
    to += array->size();
  }
}

void KeptCopy::restore(std::span<const Buffer* const> arrays, const Verdict* verdict,
                       Stream stream) const {
  const std::byte* from = copy_.data();
  for (const Buffer* array : arrays) {
    put_back_cuda(array->as<std::uint32_t>(), reinterpret_cast<const std::uint32_t*>(from),
                  array->size() / sizeof(std::uint32_t), verdict, stream);
    from += array->size();
  }
}

}  // namespace thinwire
