// frame_decode.cu: the average of one frame per rank. A block per rank opens its frame; a block per
// rank and chunk decodes a list of survivors and its part of the checksum, and the last of them
// compares the checksums; a block per tile adds the lists in rank order, so that every rank rounds
// alike. Bytes are hostile: every length is checked
// before it is used.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/tile.h"
#include "thinwire/wire/elias_fano.h"
#include "thinwire/wire/frame_device.cuh"
#include "thinwire/wire/gap_rule.h"
#include "thinwire/wire/golomb_rule.h"
#include "thinwire/wire/value_rule.h"

namespace thinwire {
namespace {

using namespace frame_device;

constexpr std::uint32_t window_bytes = 2048;  // of a directory at a time
constexpr std::uint32_t entries_at_once = threads - 1;
constexpr std::uint32_t longest_entry = 11;  // two varints and a parameter

struct DecodeArguments {
  Layout layout;
  const std::byte* slots;
  std::size_t slot_bytes;
  std::uint64_t most;  // survivors that a frame may have
  std::uint32_t bucket, chunks, ranks;
  std::size_t list;  // entries between the lists of two ranks
  ChunkEntry* entries;
  OpenedFrame* opened;        // per rank
  std::uint32_t* done;        // blocks that have decoded
  std::uint32_t* tile_first;  // per rank and tile: the first of the survivors in its list
  std::uint32_t tiles;
  std::uint32_t* indices;
  float* values;
  Verdict* verdict;

  __device__ const std::uint32_t* slot(std::uint32_t rank) const {
    return reinterpret_cast<const std::uint32_t*>(slots + rank * slot_bytes);
  }
  __device__ void accuse(Code code, std::uint32_t rank) const {
    atomicCAS(reinterpret_cast<unsigned long long*>(&verdict->fault), 0ull,
              static_cast<unsigned long long>(fault_of(code, rank, bucket)));
  }
};

// A directory in shared memory, a window at a time. All threads measure the entry that would start
// at each byte; one follows the lengths from entry to entry; then each reads an entry.
struct Directory {
  std::uint8_t window[window_bytes];
  std::uint8_t length[window_bytes];  // of the entry that starts here; 0: not in the window
  std::uint16_t starts[entries_at_once + 1];
  std::uint32_t found;      // entries in the window
  std::uint32_t code;       // the first thing wrong
  std::uint64_t at;         // byte of the frame where the next entry starts
  std::uint32_t chunk;      // and its chunk
  std::uint64_t body;       // bytes of the bodies before it
  std::uint64_t survivors;  // in the chunks before it
};

// Reads a varint in the window. Behind the slot there are zeros, which end one.
__device__ Code read_varint(const Directory& d, std::uint32_t& at, std::uint64_t& value) {
  value = 0;
  for (unsigned i = 0; i < 5; ++i) {
    if (at >= window_bytes) return Code::truncated;
    const std::uint64_t byte = d.window[at++];
    value |= (byte & 0x7f) << (7 * i);
    if (byte < 0x80) return byte == 0 && i > 0 ? Code::bad_value : Code::ok;
  }
  return Code::bad_value;
}

// The entry at a byte of the window; moves behind it.
__device__ Code read_entry(const DecodeArguments& a, const Directory& d, std::uint32_t& at,
                           std::uint32_t chunk, ChunkEntry& entry) {
  std::uint64_t head = 0, bytes = 0;
  if (const Code code = read_varint(d, at, head); code != Code::ok) return code;
  entry = {};
  if (head == 0) return Code::ok;
  if (head >> 2 == 0 || head >> 2 > chunk_extent(a.layout, chunk)) return Code::bad_value;
  if ((head & 3) > static_cast<unsigned>(IndexCoder::gap)) return Code::bad_value;
  if (at >= window_bytes) return Code::truncated;
  entry.parameter = d.window[at++];
  if (const Code code = read_varint(d, at, bytes); code != Code::ok) return code;
  if (bytes > a.slot_bytes) return Code::truncated;
  entry.count = static_cast<std::uint32_t>(head >> 2);
  entry.coder = static_cast<std::uint8_t>(head & 3);
  entry.index_bytes = static_cast<std::uint32_t>(bytes);
  return Code::ok;
}

// The length of what looks like an entry at a byte, right or wrong.
__device__ std::uint32_t entry_length(const Directory& d, std::uint32_t start) {
  std::uint32_t at = start;
  const auto skip_varint = [&] {
    for (unsigned i = 0; i < 5 && at < window_bytes; ++i)
      if (d.window[at++] < 0x80) return;
  };
  const bool empty = d.window[start] == 0;
  skip_varint();
  if (!empty) {
    ++at;
    skip_varint();
  }
  return at - start;
}

// All threads: reads the entries of the window at d.at, and moves on.
__device__ void read_window(const DecodeArguments& a, std::uint32_t rank, Directory& d,
                            ChunkEntry* entries) {
  for (std::uint32_t i = threadIdx.x; i < window_bytes; i += threads)
    d.window[i] = d.at + i < a.slot_bytes
                      ? static_cast<std::uint8_t>(byte_at(a.slot(rank), d.at + i))
                      : std::uint8_t{0};
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < window_bytes; i += threads)
    d.length[i] = static_cast<std::uint8_t>(entry_length(d, i));
  __syncthreads();
  if (threadIdx.x == 0) {
    std::uint32_t at = 0, found = 0;
    while (found < entries_at_once && d.chunk + found < a.chunks &&
           at + longest_entry <= window_bytes) {
      d.starts[found++] = static_cast<std::uint16_t>(at);
      at += d.length[at];
    }
    d.found = found;
    d.starts[found] = static_cast<std::uint16_t>(at);
  }
  __syncthreads();
  ChunkEntry entry;
  Code code = Code::ok;
  std::uint64_t body = 0;
  const bool mine = threadIdx.x < d.found;
  if (mine) {
    std::uint32_t at = d.starts[threadIdx.x];
    code = read_entry(a, d, at, d.chunk + threadIdx.x, entry);
    if (d.at + at > a.slot_bytes) code = Code::truncated;
    if (entry.count != 0)
      body = entry.index_bytes + value_rule::bytes(a.layout.values, entry.count);
  }
  std::uint64_t bodies = 0, survivors = 0;
  entry.body = d.body + block_before(body, bodies);
  const std::uint64_t before = block_before(std::uint64_t{entry.count}, survivors);
  entry.first = static_cast<std::uint32_t>(d.survivors + before);
  if (mine) entries[d.chunk + threadIdx.x] = entry;
  // Some error will do; that one was made is what counts.
  if (code != Code::ok) d.code = static_cast<std::uint32_t>(code);
  __syncthreads();
  if (threadIdx.x == 0) {
    d.body += bodies;
    d.survivors += survivors;
    d.chunk += d.found;
    d.at += d.starts[d.found];
    if (d.code == 0 && d.body > a.slot_bytes) d.code = static_cast<std::uint32_t>(Code::truncated);
    if (d.code == 0 && d.survivors > a.most) d.code = static_cast<std::uint32_t>(Code::mismatch);
  }
  __syncthreads();
}

__device__ Code read_directory(const DecodeArguments& a, std::uint32_t rank, Directory& d,
                               ChunkEntry* entries) {
  if (threadIdx.x == 0) {
    d.at = frame_header_bytes;
    d.body = d.survivors = 0;
    d.chunk = d.code = 0;
  }
  __syncthreads();
  while (d.code == 0 && d.chunk < a.chunks) read_window(a, rank, d, entries);
  if (d.code == 0 && d.body > a.slot_bytes - d.at) return Code::truncated;
  return static_cast<Code>(d.code);
}

__device__ Code compare_header(const DecodeArguments& a, const std::uint32_t* frame,
                               bool& skipped) {
  const std::uint32_t* const expected = a.layout.header.words;
  if ((frame[0] & 0xffffu) != (expected[0] & 0xffffu)) return Code::bad_magic;
  if ((frame[0] >> 16 & 0xffu) != (expected[0] >> 16 & 0xffu)) return Code::bad_version;
  if ((frame[1] & 0xffu) > 1) return Code::bad_value;
  skipped = (frame[1] & 0xffu) == 1;
  const bool same = frame[0] == expected[0] && frame[1] >> 8 == expected[1] >> 8 &&
                    frame[2] == expected[2] && frame[3] == expected[3];
  return same ? Code::ok : Code::mismatch;
}

__global__ void __launch_bounds__(threads) open_frames(const DecodeArguments a) {
  __shared__ Directory directory;
  __shared__ CrcTable table;
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

// Reads bits of [start, end) of aligned words, and zeros behind them: a BitReader for words.
class WordReader {
 public:
  static constexpr unsigned most = 57;

  __device__ WordReader(const std::uint32_t* words, std::uint64_t start, std::uint64_t bits)
      : words_(words), start_(start), bits_(bits) {}

  __device__ std::uint64_t peek() const {
    if (position_ >= bits_) return 0;
    const std::uint64_t at = start_ + position_;
    const std::uint64_t last = (start_ + bits_ - 1) >> 5;
    const std::uint64_t word = at >> 5;
    const unsigned shift = at & 31;
    const std::uint32_t a = words_[word];
    const std::uint32_t b = word < last ? words_[word + 1] : 0;
    const std::uint32_t c = word + 1 < last ? words_[word + 2] : 0;
    const std::uint64_t bits =
        std::uint64_t{__funnelshift_r(b, c, shift)} << 32 | __funnelshift_r(a, b, shift);
    const std::uint64_t left = bits_ - position_;
    return left < 64 ? bits & ((std::uint64_t{1} << left) - 1) : bits;
  }
  __device__ void skip(std::uint64_t count) { position_ += count; }
  __device__ void seek(std::uint64_t position) { position_ = position; }
  __device__ std::uint64_t position() const { return position_; }
  __device__ bool overrun() const { return position_ > bits_; }

 private:
  const std::uint32_t* words_;
  std::uint64_t start_, bits_;
  std::uint64_t position_ = 0;
};

// The same for bits in shared memory, with zeros of at least two words behind them.
class NearReader {
 public:
  static constexpr unsigned most = 57;

  __device__ NearReader(const std::uint32_t* words, std::uint32_t bits)
      : words_(words), bits_(bits) {}

  __device__ std::uint64_t peek() const {
    const std::uint32_t word = min(position_, bits_) >> 5;
    const unsigned shift = position_ & 31;
    const std::uint32_t a = words_[word], b = words_[word + 1], c = words_[word + 2];
    return std::uint64_t{__funnelshift_r(b, c, shift)} << 32 | __funnelshift_r(a, b, shift);
  }
  __device__ void skip(std::uint64_t count) { position_ += static_cast<std::uint32_t>(count); }
  __device__ void seek(std::uint64_t position) { position_ = static_cast<std::uint32_t>(position); }
  __device__ std::uint64_t position() const { return position_; }
  __device__ bool overrun() const { return position_ > bits_; }

 private:
  const std::uint32_t* words_;
  std::uint32_t bits_;
  std::uint32_t position_ = 0;
};

constexpr std::uint32_t near_words = 2048;

// Gaps of part of a chunk: how many, the sum of gap + 1, and where the next part starts.
struct Part {
  std::uint64_t end;
  std::uint32_t count;
  std::uint64_t sum;
};

// Reads gaps until a position behind `until`, or the end of the bits.
template <typename Reader>
__device__ Part read_part(Reader reader, const Golomb& golomb, std::uint32_t extent,
                          std::uint64_t from, std::uint64_t until, std::uint64_t bits) {
  Part part{from, 0, 0};
  reader.seek(from);
  while (part.end < until) {
    std::uint64_t gap = 0;
    const Status status = golomb_read(reader, golomb, extent, gap);
    if (reader.overrun()) return {bits + 1, part.count, part.sum};
    if (!status.ok() || gap > extent) gap = extent;  // bad if it is ever asked for
    part.end = reader.position();
    part.sum += gap + 1;
    ++part.count;
  }
  return part;
}

// Every thread takes a part of the bits. It does not know where its first code word starts, so it
// guesses, and corrects itself when the thread before has found out. Code words fall into step
// quickly; in any case the n-th part is right after n turns.
template <typename Reader>
__device__ Code decode_golomb(const Reader& reader, std::uint64_t bits, const ChunkEntry& entry,
                              std::uint32_t extent, std::uint32_t start, std::uint32_t* out) {
  __shared__ std::uint64_t starts[threads + 1];
  const std::uint64_t divisor = golomb_divisor(entry.parameter);
  if (divisor == 0) return Code::bad_value;
  const Golomb golomb(divisor);
  const std::uint64_t each = max(std::uint64_t{64}, (bits + threads - 1) / threads);
  const std::uint64_t until = min(bits, each * (threadIdx.x + 1));
  std::uint64_t from = min(bits, each * threadIdx.x);
  Part part = read_part(reader, golomb, extent, from, until, bits);
  for (;;) {
    starts[threadIdx.x + 1] = part.end;
    if (threadIdx.x == 0) starts[0] = 0;
    __syncthreads();
    const std::uint64_t now = starts[threadIdx.x];
    // Threads behind the end would hand its place on, one per turn.
    const bool moved = now != from && each * threadIdx.x < bits;
    if (!__syncthreads_or(moved)) break;
    if (moved) {
      from = now;
      part = read_part(reader, golomb, extent, from, until, bits);
    }
  }
  std::uint32_t all = 0;
  std::uint64_t total = 0;
  std::uint32_t rank = block_before(part.count, all);
  std::uint64_t next = block_before(part.sum, total);
  if (all < entry.count) return Code::truncated;
  Code code = Code::ok;
  Reader mine = reader;
  mine.seek(from);
  for (; rank < entry.count && mine.position() < until; ++rank) {
    std::uint64_t gap = 0;
    const Status status = golomb_read(mine, golomb, extent, gap);
    const std::uint64_t index = next + gap;
    if (!status.ok() || gap > extent || index >= extent) code = Code::bad_value;
    if (mine.overrun()) code = Code::truncated;
    if (code != Code::ok) break;
    out[rank] = start + static_cast<std::uint32_t>(index);
    next = index + 1;
    // Behind the last one only zeros to the end of a byte.
    if (rank == entry.count - 1 && ((mine.position() + 7) / 8 != bits / 8 || mine.peek() != 0))
      code = Code::bad_value;
  }
  return code;
}

__device__ Code decode_elias_fano(const WordReader& reader, std::uint64_t bits,
                                  const ChunkEntry& entry, std::uint32_t extent,
                                  std::uint32_t start, std::uint32_t* out) {
  const unsigned low = entry.parameter;
  if (low > most_low_bits) return Code::bad_value;
  const std::uint64_t split = 8 * elias_fano_low_bytes(entry.count, low);
  if (bits < split) return Code::truncated;
  const std::uint64_t bitmap = bits - split;
  // Every thread takes a part of the bitmap, in steps of 32 bits.
  const std::uint64_t each = (bitmap / threads + 32) / 32 * 32;
  const std::uint64_t from = min(bitmap, each * threadIdx.x), to = min(bitmap, from + each);
  WordReader highs = reader, lows = reader;
  const auto word_at = [&](std::uint64_t at) {
    highs.seek(split + at);
    const auto word = static_cast<std::uint32_t>(highs.peek());
    return to - at < 32 ? word & ((1u << (to - at)) - 1) : word;
  };
  std::uint32_t mine = 0, all = 0;
  for (std::uint64_t at = from; at < to; at += 32) mine += __popc(word_at(at));
  std::uint32_t rank = block_before(mine, all);
  if (all < entry.count) return Code::truncated;
  if (all > entry.count) return Code::bad_value;
  Code code = Code::ok;
  const std::uint64_t mask = (std::uint64_t{1} << low) - 1, last_high = (extent - 1) >> low;
  for (std::uint64_t at = from; at < to; at += 32) {
    for (std::uint32_t word = word_at(at); word != 0; word &= word - 1, ++rank) {
      const std::uint64_t position =
          at + static_cast<std::uint32_t>(__ffs(static_cast<int>(word))) - 1;
      const std::uint64_t high = position - rank;
      lows.seek(std::uint64_t{rank} * low);
      const std::uint64_t index = high << low | (lows.peek() & mask);
      if (high > last_high || index >= extent) {
        code = Code::bad_value;
        continue;
      }
      out[rank] = start + static_cast<std::uint32_t>(index);
      if (rank == entry.count - 1 && position / 8 + 1 != bitmap / 8) code = Code::bad_value;
    }
  }
  lows.seek(std::uint64_t{entry.count} * low);
  const std::uint64_t padding = split - std::uint64_t{entry.count} * low;
  if ((lows.peek() & ((std::uint64_t{1} << padding) - 1)) != 0) code = Code::bad_value;
  if (__syncthreads_or(code != Code::ok)) return Code::bad_value;
  for (std::uint32_t i = threadIdx.x + 1; i < entry.count; i += threads)
    if (out[i] <= out[i - 1]) code = Code::bad_value;
  return code;
}

__device__ Code decode_values(const DecodeArguments& a, const WordReader& reader,
                              std::uint64_t bits, std::uint32_t count, float* out) {
  using namespace value_rule;
  const ValueCoder coder = a.layout.values;
  WordReader mine = reader;
  std::uint32_t header = 0;
  if (const auto header_bits = 8 * header_bytes(coder); header_bits > 0)
    header = static_cast<std::uint32_t>(mine.peek() & ((std::uint64_t{1} << header_bits) - 1));
  const std::uint32_t lo = header & 0xffffu, hi = header >> 16;
  const bool levels = coder == ValueCoder::log8 || coder == ValueCoder::log4;
  if (levels && (lo > hi || hi > largest_bf16)) return Code::bad_value;
  if (coder == ValueCoder::sign && (header == 0 || header > largest_bf16)) return Code::bad_value;
  const std::uint64_t each = code_bits(coder), start = 8 * header_bytes(coder);
  const LogScale scale(levels ? lo : 0, levels ? hi : 0, coder == ValueCoder::log8 ? 7 : 3);
  Code code = Code::ok;
  for (std::uint32_t i = threadIdx.x; i < count; i += threads) {
    mine.seek(start + each * i);
    const auto word = static_cast<std::uint32_t>(mine.peek() & ((std::uint64_t{1} << each) - 1));
    float value = 0;
    switch (coder) {
      case ValueCoder::f32:
        value = float_of(word);
        if ((word & ~sign_bit) >= infinity) code = Code::bad_value;
        break;
      case ValueCoder::f16:
        value = F16::to(static_cast<std::uint16_t>(word));
        if ((word & 0x7fffu) > F16::largest) code = Code::bad_value;
        break;
      case ValueCoder::bf16:
        value = Bf16::to(static_cast<std::uint16_t>(word));
        if ((word & 0x7fffu) > Bf16::largest) code = Code::bad_value;
        break;
      case ValueCoder::log8:
      case ValueCoder::log4:
        value = scale.value(word);
        break;
      case ValueCoder::sign:
        value = float_of(word << 31 | header << 16);
        break;
    }
    out[i] = value;
  }
  mine.seek(start + each * count);
  if (mine.position() < bits && mine.peek() != 0) code = Code::bad_value;
  return code;
}

// Apart, because its model would take registers from everything else.
__device__ __noinline__ Code decode_gap(const std::byte* bytes, const ChunkEntry& entry,
                                        std::uint32_t extent, std::uint32_t start,
                                        std::uint32_t* out) {
  const Status status =
      gap_rule::decode(entry.parameter, {bytes, entry.index_bytes}, extent, {out, entry.count});
  if (status.ok())
    for (std::uint32_t i = 0; i < entry.count; ++i) out[i] += start;
  return status.code;
}

// Copies bits to shared memory, and zeros behind them.
__device__ void stage(WordReader reader, std::uint32_t bits, std::uint32_t* near) {
  for (std::uint32_t i = threadIdx.x; i < bits / 32 + 4; i += threads) {
    reader.seek(std::uint64_t{i} * 32);
    near[i] = static_cast<std::uint32_t>(reader.peek());
  }
  __syncthreads();
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
  const std::uint32_t chunk = blockIdx.x % a.chunks, rank = blockIdx.x / a.chunks;
  const OpenedFrame frame = a.opened[rank];
  if (frame.sound != 0) {
    const ChunkEntry entry = a.entries[std::size_t{rank} * a.chunks + chunk];
    std::uint32_t* const indices = a.indices + rank * a.list + entry.first;
    bool good = true;
    if (entry.count != 0) {
      table.make();
      const std::uint64_t value_bytes = value_rule::bytes(a.layout.values, entry.count);
      const std::uint64_t values_at = entry.body + entry.index_bytes;
      Code code = decode_indices(a, entry, chunk, rank, indices);
      const WordReader reader(a.slot(rank), 8 * values_at, 8 * value_bytes);
      const Code of_values = decode_values(a, reader, 8 * value_bytes, entry.count,
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
  // Another bucket's fault does not matter here: conclude() comes after all of them.
  const Verdict verdict = *a.verdict;
  if (verdict.void_step() || verdict.unsound != 0) return;
  const std::uint32_t group = threadIdx.x / group_threads;
  const std::uint64_t start = std::uint64_t{blockIdx.x} << tile_log2;
  const auto count =
      static_cast<std::uint32_t>(min(std::uint64_t{tile_elements}, a.layout.elements - start));
  for (std::uint32_t i = threadIdx.x; i < tile_elements; i += average_threads) sums[i] = 0;
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
  for (std::uint32_t i = 4 * threadIdx.x; i < count; i += 4 * average_threads) {
    if (vectors && i + 4 <= count) {
      store_four_once(average, i / 4,
                      Four<typename E::Stored>{E::narrow(sums[i]), E::narrow(sums[i + 1]),
                                               E::narrow(sums[i + 2]), E::narrow(sums[i + 3])});
    } else {
      for (std::uint32_t k = i; k < min(count, i + 4); ++k) average[k] = E::narrow(sums[k]);
    }
  }
}

}  // namespace

void FrameCuda::decode(const FrameHeader& header, ConstBytes slots, std::size_t slot_bytes,
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
  const cudaStream_t on = handle_of(stream);
  open_frames<<<a.ranks, threads, 0, on>>>(a);
  check_launch("open_frames");
  if (average.count == 0) return;
  decode_chunks<<<a.ranks * a.chunks, threads, 0, on>>>(a);
  check_launch("decode_chunks");
  with_element(average.dtype, "sparse", [&](auto element) {
    using E = decltype(element);
    using Type = typename E::Stored;
    auto* data = static_cast<Type*>(average.data);
    const bool vectors = reinterpret_cast<std::uintptr_t>(data) % (4 * sizeof(Type)) == 0;
    average_tiles<E>
        <<<a.tiles, average_threads, 0, on>>>(a, 1.0f / static_cast<float>(ranks), data, vectors);
  });
  check_launch("average_tiles");
}

}  // namespace thinwire
