// sparse_decode.cu: the average of one frame per rank. A block per rank opens its frame. A block
// per rank and chunk decodes a list of survivors and its part of the checksum; the last of them
// compares the checksums. A block per tile adds the lists in rank order, so that every rank rounds
// alike.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/sparse_codes.cuh"
#include "thinwire/compress/sparse_directory.cuh"
#include "thinwire/core/tile.h"

namespace thinwire {
namespace {

using namespace sparse_frame;

__global__ void __launch_bounds__(threads) open_frames(const DecodeArguments a) {
  __shared__ Directory directory;
  __shared__ CrcTable table;
  let_next_start();
  table.make();
  const std::uint32_t rank = blockIdx.x;
  const std::uint32_t* const frame = a.slot(rank);
  ChunkEntry* const entries = a.entries + std::size_t{rank} * a.chunks;
  bool skipped = false;
  Code code = compare_header(a, frame, skipped);
  std::uint64_t bodies = frame_header_bytes, length = frame_header_bytes;
  if (code == Code::ok && !skipped) {
    code = read_directory(a, rank, directory, entries);
    bodies = directory.at;
    length = directory.at + directory.body;
  }
  std::uint32_t crc = 0;
  if (code == Code::ok) {
    crc = frame[crc_offset / 4] ^ header_checksum(table, frame, length) ^
          piece_checksum(table, frame, frame_header_bytes, bodies, length);
    // Without bodies this is all of it.
    if (bodies == length && crc != 0) code = Code::bad_checksum;
  }
  for (std::uint32_t c = threadIdx.x; code == Code::ok && !skipped && c < a.chunks; c += threads)
    entries[c].body += bodies;
  if (threadIdx.x != 0) return;
  a.opened[rank] = {code == Code::ok && !skipped ? 1u : 0u, crc, length};
  if (code != Code::ok) {
    a.accuse(code, rank);
  } else if (skipped) {
    a.verdict->skipped = 1;
  }
}

__device__ Code decode_indices(const DecodeArguments& a, const ChunkEntry& entry,
                               std::uint32_t chunk, std::uint32_t rank, std::uint32_t* out) {
  __shared__ std::uint32_t near[near_words];
  const std::uint32_t extent = chunk_extent(a.layout, chunk);
  const auto start = static_cast<std::uint32_t>(std::uint64_t{chunk} << a.layout.chunk_log2);
  const std::uint64_t bits = std::uint64_t{8} * entry.index_bytes;
  const WordReader reader(a.slot(rank), 8 * entry.body, bits);
  switch (static_cast<IndexCoder>(entry.coder)) {
    case IndexCoder::golomb:
      if (bits > 32 * (near_words - 4))
        return decode_golomb(reader, bits, entry, extent, start, out);
      stage(reader, static_cast<std::uint32_t>(bits), near);
      return decode_golomb(NearReader(near, static_cast<std::uint32_t>(bits)), bits, entry, extent,
                           start, out);
    case IndexCoder::elias_fano:
      return decode_elias_fano(reader, bits, entry, extent, start, out);
    case IndexCoder::gap:
      break;
  }
  if (threadIdx.x != 0) return Code::ok;  // one thread: each bit depends on those before
  const auto* bytes = reinterpret_cast<const std::byte*>(a.slot(rank)) + entry.body;
  return decode_gap(bytes, entry, extent, start, out);
}

// Where the survivors of each tile of the chunk start in the rank's list. The tile behind the
// chunk is the next chunk's own, or the end of all.
__device__ void find_tiles(const DecodeArguments& a, const ChunkEntry& entry, std::uint32_t chunk,
                           std::uint32_t rank, const std::uint32_t* indices) {
  std::uint32_t* const first = a.tile_first + std::size_t{rank} * (a.tiles + 1);
  const std::uint64_t start = std::uint64_t{chunk} << a.layout.chunk_log2;
  const auto begin = static_cast<std::uint32_t>(start >> tile_log2);
  const auto end = static_cast<std::uint32_t>(
      (start + chunk_extent(a.layout, chunk) + tile_elements - 1) >> tile_log2);
  for (std::uint32_t i = threadIdx.x; i <= entry.count; i += threads) {
    // Tiles behind that of survivor i - 1, up to that of survivor i.
    const std::uint32_t from = i == 0 ? begin : (indices[i - 1] >> tile_log2) + 1;
    const std::uint32_t to = i == entry.count ? end : (indices[i] >> tile_log2) + 1;
    for (std::uint32_t tile = from; tile < to; ++tile) first[tile] = entry.first + i;
  }
  if (threadIdx.x == 0 && chunk + 1 == a.chunks) first[a.tiles] = entry.first + entry.count;
}

__global__ void __launch_bounds__(threads) decode_chunks(const DecodeArguments a) {
  __shared__ CrcTable table;
  __shared__ bool last;
  let_next_start();
  table.make();
  await_previous();
  const std::uint32_t chunk = blockIdx.x % a.chunks, rank = blockIdx.x / a.chunks;
  const OpenedFrame frame = a.opened[rank];
  if (frame.sound != 0) {
    const ChunkEntry entry = a.entries[std::size_t{rank} * a.chunks + chunk];
    std::uint32_t* const indices = a.indices + rank * a.list + entry.first;
    bool good = true;
    if (entry.count != 0) {
      const std::uint64_t value_bytes = value_rule::bytes(a.layout.values, entry.count);
      const std::uint64_t values_at = entry.body + entry.index_bytes;
      Code code = decode_indices(a, entry, chunk, rank, indices);
      const WordReader reader(a.slot(rank), 8 * values_at, 8 * value_bytes);
      const Code of_values = decode_values(a.layout.values, reader, 8 * value_bytes, entry.count,
                                           a.values + rank * a.list + entry.first);
      if (code == Code::ok) code = of_values;
      if (code != Code::ok) a.accuse(code, rank);
      const std::uint32_t crc =
          piece_checksum(table, a.slot(rank), entry.body, values_at + value_bytes, frame.length);
      if (threadIdx.x == 0) atomicXor(&a.opened[rank].crc, crc);
      good = !__syncthreads_or(code != Code::ok);
    }
    if (good) find_tiles(a, entry, chunk, rank, indices);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(a.done, 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (threadIdx.x == 0) *a.done = 0;
  for (std::uint32_t r = threadIdx.x; r < a.ranks; r += threads)
    if (__ldcg(&a.opened[r].sound) != 0 && __ldcg(&a.opened[r].crc) != 0)
      a.accuse(Code::bad_checksum, r);
}

// Small blocks, so that many tiles are under way. A group of threads fetches what one rank has in
// the tile; then the groups add in rank order.
constexpr std::uint32_t average_threads = 128, group_threads = 16;

template <typename E>
__global__ void __launch_bounds__(average_threads)
    average_tiles(const DecodeArguments a, float share, typename E::Stored* average, bool vectors) {
  constexpr std::uint32_t groups = average_threads / group_threads;
  __shared__ float sums[tile_elements];
  for (std::uint32_t i = threadIdx.x; i < tile_elements; i += average_threads) sums[i] = 0;
  await_previous();
  // Another bucket's fault does not matter here: conclude() comes after all of them.
  const Verdict verdict = *a.verdict;
  if (verdict.void_step() || verdict.unsound != 0) return;
  const std::uint32_t group = threadIdx.x / group_threads;
  const std::uint64_t start = std::uint64_t{blockIdx.x} << tile_log2;
  const auto count =
      static_cast<std::uint32_t>(min(std::uint64_t{tile_elements}, a.layout.elements - start));
  for (std::uint32_t base = 0; base < a.ranks; base += groups) {
    const std::uint32_t rank = base + group;
    std::uint32_t from = 0, to = 0;
    const std::size_t list = rank * a.list;
    if (rank < a.ranks) {
      const std::uint32_t* const first =
          a.tile_first + std::size_t{rank} * (a.tiles + 1) + blockIdx.x;
      from = first[0] + threadIdx.x % group_threads;
      to = first[1];
    }
    const bool some = from < to;
    const std::uint32_t index = some ? a.indices[list + from] : 0;
    const float value = some ? a.values[list + from] * share : 0;
    for (std::uint32_t r = 0; r < groups && base + r < a.ranks; ++r) {
      __syncthreads();
      if (group != r || !some) continue;
      sums[index - start] += value;
      for (std::uint32_t i = from + group_threads; i < to; i += group_threads)
        sums[a.indices[list + i] - start] += a.values[list + i] * share;
    }
  }
  __syncthreads();
  average += start;
  const auto narrowed = [&](std::uint32_t i) {
    const typename E::Stored x = E::narrow(sums[i]);
    // A finite sum may be infinite as a half.
    if (sizeof x < sizeof(float) && !is_finite(E::widen(x))) a.verdict->skipped = 1;
    return x;
  };
  for (std::uint32_t i = 4 * threadIdx.x; i < count; i += 4 * average_threads) {
    if (vectors && i + 4 <= count) {
      store_four_once(
          average, i / 4,
          Four<typename E::Stored>{narrowed(i), narrowed(i + 1), narrowed(i + 2), narrowed(i + 3)});
    } else {
      for (std::uint32_t k = i; k < min(count, i + 4); ++k) average[k] = narrowed(k);
    }
  }
}

}  // namespace

void SparseFrameCuda::decode(const FrameHeader& header, ConstBytes slots, std::size_t slot_bytes,
                             int ranks, std::size_t most, TensorView average, Verdict* verdict,
                             Stream stream) const {
  DecodeArguments a{};
  a.layout = layout_of(header);
  a.slots = slots.data();
  a.slot_bytes = slot_bytes;
  a.most = most;
  a.bucket = header.bucket;
  a.chunks = a.layout.chunks;
  a.ranks = static_cast<std::uint32_t>(ranks);
  a.list = survivors_;
  a.entries = entries_.as<ChunkEntry>();
  a.opened = opened_.as<OpenedFrame>();
  a.done = reinterpret_cast<std::uint32_t*>(a.opened + ranks_);
  a.tile_first = tile_first_.as<std::uint32_t>();
  a.tiles = static_cast<std::uint32_t>((average.count + tile_elements - 1) >> tile_log2);
  a.indices = indices_.as<std::uint32_t>();
  a.values = values_.as<float>();
  a.verdict = verdict;
  open_frames<<<a.ranks, threads, 0, handle_of(stream)>>>(a);
  check_launch("open_frames");
  if (average.count == 0) return;
  launch_early(decode_chunks, a.ranks * a.chunks, threads, stream, a);
  check_launch("decode_chunks");
  with_element(average.dtype, "sparse", [&](auto element) {
    using E = decltype(element);
    using Type = typename E::Stored;
    auto* data = static_cast<Type*>(average.data);
    const bool vectors = reinterpret_cast<std::uintptr_t>(data) % (4 * sizeof(Type)) == 0;
    launch_early(average_tiles<E>, a.tiles, average_threads, stream, a,
                 1.0f / static_cast<float>(ranks), data, vectors);
  });
  check_launch("average_tiles");
}

}  // namespace thinwire
