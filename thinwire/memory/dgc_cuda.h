// dgc_cuda.h: the memory of a bucket for sparse schemes in device memory. The same rules as dgc.h,
// so the same bits: what the CPU does block by block, one kernel does tile by tile.
//
//   take_in    one pass over the bucket: accumulates, compares with the threshold, and appends the
//              survivors of each tile to a pool, in whatever order blocks run
//   select     where too many passed, keeps exactly the largest and puts the others back; steers
//              the thresholds
//   conclude   takes a void step back
//
// All of them only enqueue work on a stream; none waits for the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/state.h"
#include "thinwire/core/verdict.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/put_back.h"
#include "thinwire/memory/dgc.h"

namespace thinwire {

// A piece of the bucket that lies in one segment and between two multiples of tile_elements.
struct DgcTile {
  std::uint32_t first = 0;
  std::uint16_t count = 0;
  std::uint16_t unused = 0;
  std::uint32_t segment = 0;
};

// Where the survivors of a tile are in the pool: entries [first, first + count), by index.
// `unlisted` when they did not fit: they are still in the memory then.
struct TileRange {
  static constexpr std::uint32_t unlisted = ~0u;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// A quota and its threshold.
struct DgcSegment {
  Threshold threshold;
  std::uint32_t wanted = 0, most = 0;
  std::uint32_t first_tile = 0, tiles = 0;
  std::uint32_t passed = 0;  // elements at or above the threshold in this step
  std::uint32_t unused = 0;
};

struct DgcCounters {
  std::uint32_t pooled = 0;    // entries of the pool that the pass asked for
  std::uint32_t reserved = 0;  // entries of its reserve that select() used
  std::uint32_t unsound = 0;   // not 0: this bucket's gradient has an element beyond the limit
  std::uint32_t done = 0;      // blocks that are done, for "the last one goes on"
  std::uint32_t placed = 0;    // entries of `ordered` in use
};

// Survivors, one array per field. `velocity` is null without momentum.
struct SurvivorArrays {
  std::uint32_t* index = nullptr;
  float* value = nullptr;
  float* velocity = nullptr;
};

// Everything that kernels need, as pointers to device memory.
struct DgcDevice {
  Accumulate accumulate = Accumulate::momentum;
  float momentum = 0;
  bool exact = false;
  bool mask = false;
  std::uint32_t tile_count = 0, segment_count = 0;
  std::uint32_t capacity = 0;  // of the pool for the pass; the reserve follows
  std::uint32_t elements = 0;
  const DgcTile* tiles = nullptr;
  DgcSegment* segments = nullptr;
  TileRange* table = nullptr;       // per tile
  std::uint32_t* offset = nullptr;  // per tile: where its survivors are in `ordered`
  std::uint32_t* ties = nullptr;    // per tile, for select()
  std::uint32_t* histogram = nullptr;
  DgcCounters* counters = nullptr;
  SurvivorArrays pool;
  SurvivorArrays ordered;  // of the last step, each chunk by index; conclude() needs them
  float* u = nullptr;
  float* v = nullptr;
  float* scale = nullptr;  // of the gradient
};

class DgcCudaMemory {
 public:
  DgcCudaMemory(const Bucket& bucket, const DgcMemoryOptions& options, Device device);

  // Makes room for the survivors of this density, and sets the quotas. When the density changes it
  // uploads them and may allocate; otherwise it does nothing.
  void prepare(double density, Stream stream);

  // Adds *scale * gradient to the memory, and finds the survivors.
  void step(TensorView gradient, Verdict* verdict, Stream stream);

  // After the step's verdict is known.
  void conclude(TensorView gradient, float fill, const Verdict* verdict, Stream stream);

  // Copies the memory aside; puts the copy back when the step is void.
  void keep(Stream stream);
  void restore(const Verdict* verdict, Stream stream) const;

  // Waits for the device.
  void visit_state(StateVisitor& visitor, Stream stream);

  const DgcDevice& device() const { return on_; }
  // The first tile at or after each multiple of tile_elements; null when it is the multiple itself.
  const std::uint32_t* tile_at() const { return tile_at_.as<std::uint32_t>(); }

 private:
  void upload_segments(Stream stream);

  Bucket bucket_;
  DgcMemoryOptions options_;
  Device where_;
  struct Span {
    std::size_t first = 0, count = 0;
  };
  std::vector<Span> spans_;           // of the segments
  std::vector<DgcSegment> segments_;  // as they were uploaded
  double density_ = 0;
  DgcDevice on_;
  Buffer tiles_, tile_at_, segment_memory_, table_, offset_, ties_, histogram_, counters_, scale_;
  Buffer u_, v_, pool_, ordered_;
  KeptCopy kept_;
};

// The kernels (dgc.cu, select.cu).
void dgc_take_in(const DgcDevice& on, TensorView gradient, Verdict* verdict, Stream stream);
void dgc_select(const DgcDevice& on, TensorView gradient, Stream stream);
// The factor of the gradient, from its squared norm: clip_factor().
void dgc_clip(const DgcDevice& on, const double* squared_norm, double limit, Stream stream);
// After select(): the survivors as a dense array `out`, or a NaN in its first element where the
// gradient is beyond the limit.
void dgc_scatter(const DgcDevice& on, float* out, Stream stream);
// From the sum of such arrays to the average. A sum that is not finite skips the step.
void dgc_average(const float* sum, float share, TensorView average, Verdict* verdict,
                 Stream stream);
void dgc_conclude(const DgcDevice& on, TensorView gradient, float fill, const Verdict* verdict,
                  Stream stream);

// Entries of the histogram that select() needs.
inline constexpr std::size_t dgc_histogram_entries = 3 * 2048;

}  // namespace thinwire
