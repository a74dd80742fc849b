// uneven.cuh: payloads of blocks whose lengths depend on the data. A writer gives every block room
// for the longest it can be; the last thread block to end adds up the lengths, and a second kernel
// closes the gaps. In the payload a u16 length per block comes before the blocks.
//
// A reader has a warp per block. It finds code words as sparse_codes.cuh does: every lane takes a
// part of the bits, guesses where its first code word starts, and corrects itself when the lane
// before has found out. In any case the n-th part is right after n turns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cub/block/block_scan.cuh>

#include "thinwire/compress/coded.cuh"
#include "thinwire/compress/word_reader.cuh"

namespace thinwire::uneven {

using coded::warp;

inline constexpr unsigned threads = block_threads, warps = threads / warp;
inline constexpr std::uint32_t room_unit = 16;  // bytes

// The blocks of a bucket on the device.
struct Rooms {
  std::uint32_t count;
  const std::uint32_t* places;  // of each room, in units
  std::byte* memory;
  std::uint32_t* lengths;  // in bytes, then where each starts in the payload
  std::uint32_t* done;     // thread blocks, for "the last one goes on"

  __device__ std::uint32_t* of(std::uint32_t block) const {
    return reinterpret_cast<std::uint32_t*>(memory + std::size_t{room_unit} * places[block]);
  }
};

// Owns the memory of the blocks of a bucket, and of where those of all ranks start.
class RoomMemory {
 public:
  // `most`: the bytes of each block at most.
  RoomMemory(const std::vector<std::uint32_t>& most, int ranks, bool sends, Device device)
      : ranks_(static_cast<std::uint32_t>(ranks)) {
    std::vector<std::uint32_t> places;
    std::uint32_t room = 0;
    for (const std::uint32_t bytes : most) {
      places.push_back(room);
      room += bytes / room_unit + 1;  // a reader may look at one more word
    }
    places_ = coded::uploaded(places, device);
    done_ = coded::uploaded(std::vector<std::uint32_t>{0}, device);
    starts_ = Buffer(Place::cuda, ranks_ * (most.size() + 1) * sizeof(std::uint32_t), device);
    if (sends) {
      memory_ = Buffer(Place::cuda, std::size_t{room_unit} * room, device);
      lengths_ = Buffer(Place::cuda, 2 * most.size() * sizeof(std::uint32_t), device);
    }
    rooms_ = {static_cast<std::uint32_t>(most.size()), places_.as<std::uint32_t>(), memory_.data(),
              lengths_.as<std::uint32_t>(), done_.as<std::uint32_t>()};
  }

  const Rooms& rooms() const { return rooms_; }
  // Per rank: the places of its blocks in its payload, and their end.
  std::uint32_t* starts() const { return starts_.as<std::uint32_t>(); }

 private:
  std::uint32_t ranks_;
  Buffer places_, memory_, lengths_, done_, starts_;
  Rooms rooms_{};
};

// Sums of the threads before this one, and of all; `last` is a maximum instead.
struct Before {
  std::uint32_t sum, last, all;
};

// Over a team of `size` threads. Each use in a kernel has a number of its own, because the threads
// may still read what one use has left when the next begins.
template <unsigned size, int use = 0>
__device__ Before scan(std::uint32_t sum, std::uint32_t last) {
  const unsigned lane = threadIdx.x % warp;
  std::uint32_t until = sum, most = last;
  for (unsigned step = 1; step < warp; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(~0u, until, step);
    const std::uint32_t other_most = __shfl_up_sync(~0u, most, step);
    if (lane < step) continue;
    until += other;
    most = max(most, other_most);
  }
  std::uint32_t shifted = __shfl_up_sync(~0u, most, 1);
  if (lane == 0) shifted = 0;
  Before before{until - sum, shifted, __shfl_sync(~0u, until, warp - 1)};
  if constexpr (size > warp) {
    __shared__ std::uint32_t sums[size / warp], lasts[size / warp];
    const unsigned mine = threadIdx.x / warp;
    if (lane == warp - 1) {
      sums[mine] = until;
      lasts[mine] = most;
    }
    __syncthreads();
    before.all = 0;
    for (unsigned k = 0; k < size / warp; ++k) {
      if (k < mine) {
        before.sum += sums[k];
        before.last = max(before.last, lasts[k]);
      }
      before.all += sums[k];
    }
  }
  return before;
}

// Sets bits of words in shared memory that are zero.
__device__ inline void set_bits(std::uint32_t* words, std::uint32_t position, std::uint64_t value) {
  const unsigned shift = position % 32;
  std::uint32_t* const at = words + position / 32;
  const auto low = static_cast<std::uint32_t>(value << shift);
  const auto high = static_cast<std::uint32_t>(value << shift >> 32);
  if (low != 0) atomicOr(at, low);
  if (high != 0) atomicOr(at + 1, high);
}

// The last thread block, of `threads`: writes the directory of lengths, and finds the places of the
// blocks behind a head. Returns their end.
__device__ inline std::uint32_t lay_out(const Rooms& rooms, std::uint32_t head,
                                        std::uint16_t* directory) {
  using Scan = cub::BlockScan<std::uint32_t, threads>;
  __shared__ typename Scan::TempStorage storage;
  constexpr std::uint32_t each = 4;
  for (std::uint32_t base = 0; base < rooms.count; base += each * threads) {
    std::uint32_t mine[each], sum = 0, before = 0, all = 0;
    const std::uint32_t first = base + each * threadIdx.x;
    for (std::uint32_t k = 0; k < each; ++k) {
      mine[k] = first + k < rooms.count ? __ldcg(rooms.lengths + first + k) : 0;
      sum += mine[k];
    }
    Scan(storage).ExclusiveSum(sum, before, all);
    before += head;
    for (std::uint32_t k = 0; k < each && first + k < rooms.count; ++k) {
      directory[first + k] = static_cast<std::uint16_t>(mine[k]);
      rooms.lengths[rooms.count + first + k] = before;
      before += mine[k];
    }
    head += all;
    __syncthreads();
  }
  return head;
}

// One warp per block: from its room to its place in the payload, which may start at any byte.
static __global__ void __launch_bounds__(threads)
    close_up(const Rooms rooms, std::uint8_t* payload) {
  const unsigned lane = threadIdx.x % warp;
  await_previous();
  for (std::size_t k = thread_index() / warp; k < rooms.count; k += thread_count() / warp) {
    const auto block = static_cast<std::uint32_t>(k);
    const std::uint32_t length = rooms.lengths[block];
    const std::uint32_t* const from = rooms.of(block);
    std::uint8_t* const to = payload + rooms.lengths[rooms.count + block];
    const auto odd = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(to) % 4);
    const std::uint32_t skip = min((4 - odd) % 4, length), whole = (length - skip) / 4;
    auto* const words = reinterpret_cast<std::uint32_t*>(to + skip);
    for (std::uint32_t i = lane; i < whole; i += warp)
      words[i] = skip == 0 ? from[i] : __funnelshift_r(from[i], from[i + 1], 8 * skip);
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(from);
    if (lane < skip) to[lane] = bytes[lane];
    const std::uint32_t tail = skip + 4 * whole + lane;
    if (tail < length) to[tail] = bytes[tail];
  }
}

// One thread block: where the blocks of a payload start. `most(block, length)` tells whether a
// block may be that long. Returns whether all may, and fill the payload.
template <typename MayBe>
__device__ bool find_starts(std::uint32_t count, std::uint32_t head, std::uint32_t bytes,
                            const std::uint16_t* directory, std::uint32_t* starts,
                            const MayBe& may_be) {
  using Scan = cub::BlockScan<std::uint64_t, threads>;
  __shared__ typename Scan::TempStorage storage;
  constexpr std::uint32_t each = 4;
  std::uint64_t end = head;
  bool sound = true;
  for (std::uint32_t base = 0; base < count; base += each * threads) {
    std::uint32_t mine[each];
    std::uint64_t sum = 0, before = 0, all = 0;
    const std::uint32_t first = base + each * threadIdx.x;
    for (std::uint32_t k = 0; k < each; ++k) {
      const bool valid = first + k < count;
      mine[k] = valid ? directory[first + k] : 0;
      if (valid) sound = sound && may_be(first + k, mine[k]);
      sum += mine[k];
    }
    Scan(storage).ExclusiveSum(sum, before, all);
    before += end;
    for (std::uint32_t k = 0; k < each && first + k < count; ++k) {
      starts[first + k] = static_cast<std::uint32_t>(before);
      before += mine[k];
    }
    end += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) starts[count] = static_cast<std::uint32_t>(end);
  return __syncthreads_and(sound && end == bytes) != 0;
}

// Code words of part of a block: where the next part starts, how many, and the elements they take.
struct Part {
  std::uint64_t end;
  std::uint32_t count, elements;
};

// Reads code words until a position behind `until`, or the end of the bits. `skip(reader)` reads
// one and returns the elements it takes, whatever it is.
template <typename Skip>
__device__ Part read_part(WordReader reader, const Skip& skip, std::uint64_t from,
                          std::uint64_t until, std::uint64_t bits) {
  Part part{from, 0, 0};
  reader.seek(from);
  while (part.end < until) {
    const std::uint32_t elements = skip(reader);
    if (reader.overrun()) return {bits + 1, part.count, part.elements};
    part.end = reader.position();
    part.elements += elements;
    ++part.count;
  }
  return part;
}

// What a lane reads: from its first code word on, up to a position behind `until`; the code words
// and the elements before that, and the code words of all lanes.
struct Share {
  std::uint64_t from, until;
  std::uint32_t rank, next, all;
};

// One warp: shares the code words between `head` and the end out.
template <typename Skip>
__device__ Share share_out(const WordReader& reader, const Skip& skip, unsigned head,
                           std::uint64_t bits) {
  const unsigned lane = threadIdx.x % warp;
  const std::uint64_t codes = bits > head ? bits - head : 0;
  const std::uint64_t each = max(std::uint64_t{64}, (codes + warp - 1) / warp);
  const std::uint64_t start = head + each * lane;
  Share share{min(bits, start), min(bits, start + each), 0, 0, 0};
  Part part = read_part(reader, skip, share.from, share.until, bits);
  for (;;) {
    std::uint64_t now = __shfl_up_sync(~0u, part.end, 1);
    if (lane == 0) now = share.from;
    // Lanes behind the end would hand its place on, one per turn.
    const bool moved = now != share.from && start < bits;
    if (!__any_sync(~0u, moved)) break;
    if (moved) {
      share.from = now;
      part = read_part(reader, skip, share.from, share.until, bits);
    }
  }
  const Before words = scan<warp>(part.count, 0), elements = scan<warp>(part.elements, 0);
  share.rank = words.sum;
  share.all = words.all;
  share.next = elements.sum;
  return share;
}

}  // namespace thinwire::uneven
