// fuzz_frame.cc: decoding any bytes never over-reads, and read_directory agrees with decode_sparse.
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "fuzz/fuzz.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/wire/frame.h"

namespace thinwire {
namespace {

constexpr std::size_t most = 4096;

void check(ConstBytes bytes) {
  FrameHeader header, other;
  Sparse sparse;
  std::vector<ChunkInfo> chunks;
  std::size_t used = 0, measured = 0, survivors = 0;
  const Status decoded = decode_sparse(bytes, most, header, sparse, used);
  const Status listed = read_directory(bytes, other, chunks, measured);
  fuzz::require(header == other, "both read the same header");
  if (!decoded.ok() && decoded.code != Code::skipped) {
    const bool later = decoded.code == Code::bad_checksum || listed.ok();
    fuzz::require(later || listed.code == decoded.code, "a bad directory is bad for both");
    return;
  }
  fuzz::require(listed.code == decoded.code, "what decodes has a sound directory");
  fuzz::require(used == measured && used <= bytes.size(), "both find the same length");
  for (const ChunkInfo& chunk : chunks) survivors += chunk.count;
  fuzz::require(survivors == sparse.indices.size() && survivors == sparse.values.size(),
                "both find the same number of survivors");
  for (std::size_t i = 0; i < survivors; ++i) {
    fuzz::require(sparse.indices[i] < header.elements, "indices are below elements");
    fuzz::require(i == 0 || sparse.indices[i - 1] < sparse.indices[i], "indices ascend");
  }
}

// Puts the correct checksum into the frame, if its directory gives the length.
void repair(Bytes bytes) {
  FrameHeader header;
  std::vector<ChunkInfo> chunks;
  std::size_t length = 0;
  const Status status = read_directory(bytes, header, chunks, length);
  if (!status.ok() && status.code != Code::skipped) return;
  const ConstBytes frame = bytes.first(length);
  const std::uint32_t crc = crc32c(frame.subspan(20), crc32c(frame.first(16)));
  std::memcpy(bytes.data() + 16, &crc, sizeof crc);
}

}  // namespace
}  // namespace thinwire

// Input: a frame.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thinwire::fuzz::check_repaired(data, size, thinwire::check, thinwire::repair);
  return 0;
}
