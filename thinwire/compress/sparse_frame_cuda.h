// sparse_frame_cuda.h: sparse frames in device memory: written from the survivors of a bucket, and
// opened, decoded and averaged. Byte for byte the frames of wire/frame.h. All calls only enqueue.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/core/buffer.h"
#include "thinwire/core/verdict.h"
#include "thinwire/core/view.h"
#include "thinwire/memory/dgc_cuda.h"
#include "thinwire/wire/frame.h"

namespace thinwire {

// Slots of frames in device memory have a multiple of this many bytes, so that words are aligned.
inline constexpr std::size_t slot_alignment = 16;

// One chunk of a frame that is written.
struct ChunkPlan {
  std::uint32_t first = 0, count = 0;  // among the survivors, in order of index
  std::uint32_t index_bytes = 0;
  std::uint32_t value_header = 0;
  std::uint8_t coder = 0, parameter = 0;
  std::uint16_t unused = 0;
  std::uint32_t written = 0;  // gap: where its bytes are in the scratch memory
  std::uint64_t body = 0;     // where its body starts in the frame
};

// One chunk of a frame that is read.
struct ChunkEntry {
  std::uint32_t count = 0;
  std::uint32_t first = 0;  // place of its survivors in the lists of its rank
  std::uint8_t coder = 0, parameter = 0;
  std::uint16_t unused = 0;
  std::uint32_t index_bytes = 0;
  std::uint64_t body = 0;  // where its body starts in the frame
};

// A frame whose directory was read.
struct OpenedFrame {
  std::uint32_t sound = 0;  // 1: its chunks may be decoded
  std::uint32_t crc = 0;    // the checksum so far; 0 when all of it was seen and it is right
  std::uint64_t length = 0;
};

// Writes and reads the frames of one bucket, and owns the memory for it.
class SparseFrameCuda {
 public:
  // Makes room for frames like this one, with up to `survivors` and `bound` bytes, for writing and
  // for reading `ranks` of them. Does nothing where there is enough.
  void prepare(const FrameHeader& header, std::size_t survivors, std::size_t bound, int ranks,
               Device device, Stream stream);

  // Writes the frame of the last step of `memory` into `out`, and its length into *written. The
  // residual keeps what rounding takes. The bucket's own verdict decides whether the frame says
  // `skipped`.
  void encode(const FrameHeader& header, IndexChoice choice, const DgcDevice& memory,
              const std::uint32_t* tile_at, Bytes out, std::uint64_t* written, Stream stream) const;

  // Opens one frame per rank, compares each with `header`, and writes their average. Bad frames are
  // reported in the verdict. Nothing is written when the step is void, or this rank's gradient is
  // still needed.
  void decode(const FrameHeader& header, ConstBytes slots, std::size_t slot_bytes, int ranks,
              std::size_t most, TensorView average, Verdict* verdict, Stream stream) const;

 private:
  std::size_t chunks_ = 0, survivors_ = 0, bound_ = 0, tiles_ = 0;
  int ranks_ = 0;
  Buffer plans_, scratch_, state_, entries_, opened_, tile_first_, indices_, values_;
};

}  // namespace thinwire
