// terngrad.cu: TernGrad in device memory. Round 0: a warp per block of norm.h measures the layers.
// Round 1: bytes of five elements, a word or two per thread; a table turns a byte into five small
// fields, so that the bytes of many ranks are added at once.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/coded_decode.cuh"
#include "thinwire/compress/frames.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/kernels/terngrad.h"

namespace thinwire {
namespace {

using namespace coded;

constexpr std::uint8_t scheme_id = 9;
constexpr unsigned digits = 5;
constexpr std::uint32_t group_bytes = terngrad_group / digits;
constexpr unsigned part_blocks = block_threads / warp;  // blocks of norm.h that a thread block adds
constexpr std::uint32_t part_elements = part_blocks * norm_block;

struct Layer {
  std::uint32_t first, end;         // elements
  std::uint32_t first_part, parts;  // of its statistics
};

// What kernels keep of a layer.
struct LayerState {
  std::uint32_t largest;  // bits of the largest magnitude, while parts add to it
  float clip, scale;      // of this rank; of all ranks
};

struct Part {
  std::uint32_t first, count, layer;
};

// A block per part: the sum of its squares, as a subtree of the pairs of norm.h.
template <typename E>
__global__ void __launch_bounds__(block_threads)
    measure_parts(const typename E::Stored* gradient, const Part* parts, double* sums,
                  LayerState* layers) {
  __shared__ double blocks[part_blocks];
  const Part part = parts[blockIdx.x];
  const unsigned lane = threadIdx.x % warp, block = threadIdx.x / warp;
  const std::uint32_t at = block * norm_block;
  double sum = 0;
  std::uint32_t most = 0;
  if (at < part.count) {
    const std::uint32_t count = min(static_cast<std::uint32_t>(norm_block), part.count - at);
    const auto* const from = gradient + part.first + at;
#pragma unroll 16
    for (std::uint32_t i = lane; i < count; i += warp) {
      const float x = E::widen(from[i]);
      most = max(most, std::bit_cast<std::uint32_t>(x) & 0x7fffffffu);
      sum += static_cast<double>(x) * static_cast<double>(x);
    }
  }
  for (unsigned half = warp / 2; half > 0; half /= 2) sum += __shfl_down_sync(~0u, sum, half);
  most = __reduce_max_sync(~0u, most);
  if (lane == 0) {
    blocks[block] = sum;
    atomicMax(&layers[part.layer].largest, most);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  auto left = static_cast<unsigned>((part.count + norm_block - 1) / norm_block);
  for (; left > 1; left = (left + 1) / 2)
    for (unsigned i = 0; i < left; i += 2)
      blocks[i / 2] = i + 1 < left ? blocks[i] + blocks[i + 1] : blocks[i];
  sums[blockIdx.x] = blocks[0];
}

// A block per layer: the pairs of its parts, and what it sends.
__global__ void __launch_bounds__(block_threads)
    bound_layers(const Layer* layers, double* sums, LayerState* states, double clip, float* out,
                 Verdict* verdict) {
  const Layer layer = layers[blockIdx.x];
  double* const mine = sums + layer.first_part;
  for (std::uint32_t left = layer.parts; left > 1; left = (left + 1) / 2) {
    // Ascending, so that what is read was not overwritten in this level.
    for (std::uint32_t base = 0; 2 * base < left; base += block_threads) {
      const std::uint32_t i = base + threadIdx.x;
      double sum = 0;
      if (2 * i < left) sum = 2 * i + 1 < left ? mine[2 * i] + mine[2 * i + 1] : mine[2 * i];
      __syncthreads();
      if (2 * i < left) mine[i] = sum;
      __syncthreads();
    }
  }
  if (threadIdx.x != 0) return;
  LayerStatistics found;
  LayerState& state = states[blockIdx.x];
  found.squares = layer.parts == 0 ? 0 : mine[0];
  found.largest = std::bit_cast<float>(state.largest);
  found.finite = state.largest < 0x7f800000u;
  const TerngradBounds bounds = terngrad_bounds(clip, found, layer.end - layer.first);
  state.clip = bounds.clip;
  state.largest = 0;
  out[blockIdx.x] = bounds.scale;
  if (!found.finite) verdict->unsound = 1;
}

// The maxima of all ranks.
__global__ void take_scales(const float* maxima, std::uint32_t count, LayerState* states,
                            std::uint32_t bucket, Verdict* verdict) {
  for (std::size_t k = thread_index(); k < count; k += thread_count()) {
    const float scale = maxima[k];
    states[k].scale = scale;
    if (!is_finite(scale)) {
      verdict->skipped = 1;
    } else if (scale < 0) {
      block_frame::accuse(verdict, Code::bad_value, 0, bucket);
    }
  }
}

struct Layers {
  const Layer* layer;
  const LayerState* state;
  const std::uint32_t* at_group;  // the layer of the first element of each group
  std::uint32_t elements;

  // The layer of element i, which is not before layer k.
  __device__ std::uint32_t of(std::uint32_t i, std::uint32_t k) const {
    while (i >= layer[k].end) ++k;
    return k;
  }
};

// The five elements of byte b: element `first + k * stride` for k below five, up to `end`.
struct ByteElements {
  std::uint32_t first, stride, end, layer;
};

__device__ ByteElements elements_of_byte(const Layers& layers, std::uint32_t b) {
  const std::uint32_t group = b / group_bytes, start = group * terngrad_group;
  const std::uint32_t left = layers.elements - start;
  const std::uint32_t size = left < terngrad_group ? left : terngrad_group;
  return {start + b % group_bytes, (size + digits - 1) / digits, start + size,
          layers.at_group[group]};
}

template <typename E>
__device__ int quantised(const Layers& layers, const typename E::Stored* gradient, std::uint32_t i,
                         std::uint32_t layer, DrawKey key) {
  const LayerState& state = layers.state[layer];
  return terngrad_value(E::widen(gradient[i]), state.clip, terngrad_inverse(state.scale),
                        draw_at(key, i));
}

constexpr std::uint32_t power_of_three(unsigned d) {
  return d == 0 ? 1 : 3 * power_of_three(d - 1);
}

template <typename E>
__device__ void pack_byte(const Layers& layers, const typename E::Stored* gradient, DrawKey key,
                          std::uint32_t b, std::uint8_t* payload) {
  const ByteElements five = elements_of_byte(layers, b);
  std::uint32_t layer = five.layer;
  unsigned byte = 0;
#pragma unroll
  for (unsigned d = 0; d < digits; ++d) {
    const std::uint32_t i = five.first + d * five.stride;
    if (i >= five.end) continue;
    layer = layers.of(i, layer);
    const int value = quantised<E>(layers, gradient, i, layer, key);
    byte += power_of_three(d) * static_cast<unsigned>(value < 0 ? 2 : value);
  }
  payload[b] = static_cast<std::uint8_t>(byte);
}

// Two words of a whole group, 16 bytes apart, by a thread: their elements share draws. The group is
// of one layer, and the gradient is aligned.
template <typename E>
__device__ void pack_words(const LayerState& state, const typename E::Stored* gradient, DrawKey key,
                           std::uint32_t start, std::uint32_t* words) {
  const float inverse = terngrad_inverse(state.scale);
  std::uint32_t word[2] = {};
#pragma unroll
  for (unsigned d = 0; d < digits; ++d) {
    const std::uint32_t first = start + d * group_bytes;
    const auto low = load_four(gradient, first / 4), high = load_four(gradient, first / 4 + 4);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const std::uint32_t hash = draw_hash(key, first / 32 * 16 + first % 16 + i);
      const auto digit = [&](typename E::Stored g, std::uint32_t draw) {
        const int value = terngrad_value(E::widen(g), state.clip, inverse, draw);
        return static_cast<unsigned>(value < 0 ? 2 : value) * (power_of_three(d) << 8 * i);
      };
      word[0] += digit(low.at[i], hash);
      word[1] += digit(high.at[i], hash << 16 | hash >> 16);
    }
  }
  words[0] = word[0];
  words[4] = word[1];
}

// Eight threads per group.
template <typename E>
__global__ void __launch_bounds__(block_threads)
    pack_groups(const Layers layers, const typename E::Stored* gradient, DrawKey key,
                std::uint32_t bytes, std::uint8_t* payload) {
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(gradient) % alignof(Four<typename E::Stored>) == 0;
  const std::size_t pieces = (std::size_t{bytes} + group_bytes - 1) / group_bytes * 8;
  for (std::size_t k = thread_index(); k < pieces; k += thread_count()) {
    const auto group = static_cast<std::uint32_t>(k / 8);
    // Words 0 to 3 and 8 to 11 of the group, and the ones four behind.
    const auto word = static_cast<std::uint32_t>(k % 8 / 4 * 8 + k % 4);
    const std::uint32_t first = group * terngrad_group;
    const bool whole = layers.elements - first >= terngrad_group;
    const std::uint32_t layer = layers.at_group[group];
    if (aligned && whole && layers.layer[layer].end - first >= terngrad_group) {
      pack_words<E>(layers.state[layer], gradient, key, first + 4 * word,
                    reinterpret_cast<std::uint32_t*>(payload) + 16 * std::size_t{group} + word);
      continue;
    }
    for (unsigned i = 0; i < 8; ++i) {
      const std::uint32_t b = group * group_bytes + 4 * word + i % 4 + i / 4 * 16;
      if (b < bytes) pack_byte<E>(layers, gradient, key, b, payload);
    }
  }
}

// Four neighbours per thread; they are in one group.
template <typename E>
__global__ void __launch_bounds__(block_threads)
    write_votes(const Layers layers, const typename E::Stored* gradient, DrawKey key,
                std::int8_t* out) {
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(gradient) % alignof(Four<typename E::Stored>) == 0;
  for (std::size_t k = thread_index(); 4 * k < layers.elements; k += thread_count()) {
    const auto first = static_cast<std::uint32_t>(4 * k);
    const std::uint32_t count = min(4u, layers.elements - first);
    std::uint32_t layer = layers.of(first, layers.at_group[first / terngrad_group]);
    if (aligned && count == 4 && layers.layer[layer].end - first >= 4) {
      const LayerState& state = layers.state[layer];
      const float inverse = terngrad_inverse(state.scale);
      const auto four = load_four(gradient, k);
      Four<std::int8_t> votes;
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        votes.at[i] = static_cast<std::int8_t>(
            terngrad_value(E::widen(four.at[i]), state.clip, inverse, draw_at(key, first + i)));
      store_four(out, k, votes);
      continue;
    }
    for (std::uint32_t i = first; i < first + count; ++i) {
      layer = layers.of(i, layer);
      out[i] = static_cast<std::int8_t>(quantised<E>(layers, gradient, i, layer, key));
    }
  }
}

// Fields of 6 bits hold value + 1, which is at most 2: 31 ranks fit. The top bit is set for bytes
// that no encoder writes.
constexpr unsigned field_bits = 6, ranks_at_once = 31;

__host__ __device__ constexpr std::uint32_t fields_of(std::uint32_t byte) {
  std::uint32_t fields = byte < 243 ? 0 : 1u << 31;
  for (unsigned d = 0; d < digits; ++d, byte /= 3) {
    const std::uint32_t digit = byte % 3;
    fields |= (digit == 2 ? 0u : digit + 1) << field_bits * d;
  }
  return fields;
}

// In shared memory. Lane i uses copy i % 8: fewer lanes meet in a bank.
struct FieldTable {
  static constexpr unsigned copies = 8;
  std::uint32_t at[256][copies];

  __device__ void make() {
    for (unsigned k = 0; k < copies; ++k)
      at[threadIdx.x][(threadIdx.x + k) % copies] = fields_of(threadIdx.x);
    __syncthreads();
  }
  __device__ std::uint32_t of(std::uint32_t byte) const { return at[byte][threadIdx.x % copies]; }
};

__device__ int field(std::uint32_t fields, unsigned d) {
  return static_cast<int>(fields >> field_bits * d & ((1u << field_bits) - 1));
}

// Returns the worst rank, or ~0.
template <typename E>
__device__ std::uint32_t average_byte(const BlockPayloads& in, const Layers& layers,
                                      const FieldTable& table, std::uint32_t b, float workers,
                                      typename E::Stored* average) {
  const ByteElements five = elements_of_byte(layers, b);
  // Digits of elements that do not exist are zero.
  unsigned used = 0;
  while (used < digits && five.first + used * five.stride < five.end) ++used;
  constexpr std::uint32_t zeros = fields_of(0);
  const std::uint32_t unused = used == digits ? 0 : ~0u << field_bits * used;
  std::uint32_t worst = ~0u;
  int sums[digits] = {};
  for (std::uint32_t rank = 0; rank < in.ranks; ++rank) {
    const std::uint32_t now = table.of(block_frame::payload_of(in, rank)[b]);
    if (now >> 31 != 0 || ((now ^ zeros) & unused) != 0) worst = min(worst, rank);
    for (unsigned d = 0; d < digits; ++d) sums[d] += field(now, d) - 1;
  }
  std::uint32_t layer = five.layer;
#pragma unroll
  for (unsigned d = 0; d < digits; ++d) {
    const std::uint32_t i = five.first + d * five.stride;
    if (i >= five.end) continue;
    layer = layers.of(i, layer);
    average[i] = narrowed<E>(static_cast<float>(sums[d]) * (layers.state[layer].scale / workers),
                             in.verdict);
  }
  return worst;
}

// A word of a whole group: five times four neighbours.
template <typename E>
__device__ std::uint32_t average_word(const BlockPayloads& in, const Layers& layers,
                                      const FieldTable& table, std::uint32_t group,
                                      std::uint32_t word, float workers,
                                      typename E::Stored* average) {
  const std::size_t at = std::size_t{group} * group_bytes + 4 * word;
  const auto word_of = [&](std::uint32_t rank) {
    return *reinterpret_cast<const std::uint32_t*>(block_frame::payload_of(in, rank) + at);
  };
  int sums[digits][4] = {};
  std::uint32_t all = 0;
  for (std::uint32_t base = 0; base < in.ranks; base += ranks_at_once) {
    const std::uint32_t end = min(in.ranks, base + ranks_at_once);
    std::uint32_t sum[4] = {};
#pragma unroll 8
    for (std::uint32_t rank = base; rank < end; ++rank) {
      const std::uint32_t bytes = word_of(rank);
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const std::uint32_t now = table.of(bytes >> 8 * i & 0xffu);
        sum[i] += now;
        all |= now;
      }
    }
#pragma unroll
    for (unsigned d = 0; d < digits; ++d)
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        sums[d][i] += field(sum[i], d) - static_cast<int>(end - base);
  }
  std::uint32_t worst = ~0u;
  if (all >> 31 != 0) {
    for (std::uint32_t rank = in.ranks; rank-- > 0;)
      for (unsigned i = 0; i < 4; ++i)
        if (table.of(word_of(rank) >> 8 * i & 0xffu) >> 31 != 0) worst = rank;
  }
  const std::uint32_t first = group * terngrad_group;
  std::uint32_t layer = layers.at_group[group];
  const bool one = layers.layer[layer].end - first >= terngrad_group;
  float unit = layers.state[layer].scale / workers;
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(average) % alignof(Four<typename E::Stored>) == 0;
#pragma unroll
  for (unsigned d = 0; d < digits; ++d) {
    const std::uint32_t start = first + d * group_bytes + 4 * word;
    float values[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      if (!one) {
        layer = layers.of(start + i, layer);
        unit = layers.state[layer].scale / workers;
      }
      values[i] = static_cast<float>(sums[d][i]) * unit;
    }
    if (aligned) {
      store_four_once(average, start / 4, narrowed_four<E>(values, in.verdict));
    } else {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) average[start + i] = narrowed<E>(values[i], in.verdict);
    }
  }
  return worst;
}

constexpr std::uint32_t group_words = group_bytes / 4;
constexpr std::uint32_t turn_groups = block_threads / group_words, tile_turns = 4;
constexpr std::uint32_t tile_groups = tile_turns * turn_groups;

template <typename E>
__global__ void __launch_bounds__(block_threads, 4)
    average_groups(const BlockPayloads in, const block_frame::SumPlan plan, const Layers layers,
                   std::uint32_t bytes, float workers, typename E::Stored* average) {
  __shared__ block_frame::SumTables tables;
  __shared__ FieldTable table;
  table.make();
  block_frame::LineSums sums(tables, plan);
  await_previous();
  if (!block_frame::may_average(in)) return;
  const block_frame::AllFrames frames{in, plan.payload};
  const std::uint32_t full = layers.elements / terngrad_group, word = threadIdx.x % group_words;
  std::uint32_t worst = ~0u, tile = blockIdx.x;
  for (; tile < plan.tiles; tile += gridDim.x) {
    sums.add(frames, tile);
    for (unsigned turn = 0; turn < tile_turns; ++turn) {
      const std::uint32_t group =
          tile * tile_groups + turn * turn_groups + threadIdx.x / group_words;
      if (group < full) {
        worst = min(worst, average_word<E>(in, layers, table, group, word, workers, average));
      } else if (group == full) {
        for (unsigned i = 0; i < 4; ++i) {
          const std::uint32_t b = group * group_bytes + 4 * word + i;
          if (b < bytes)
            worst = min(worst, average_byte<E>(in, layers, table, b, workers, average));
        }
      }
    }
  }
  sums.finish(&in.check->found);
  if (worst != ~0u) in.opened[worst].bad_value = in.check->bad_value = 1;
  block_frame::compare_sums(in);
}

template <typename E>
__global__ void __launch_bounds__(block_threads)
    average_sums(const std::int8_t* sums, const Layers layers, float workers,
                 typename E::Stored* average, Verdict* verdict) {
  if (verdict->void_step() || verdict->unsound != 0) return;
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(average) % alignof(Four<typename E::Stored>) == 0;
  for (std::size_t k = thread_index(); 4 * k < layers.elements; k += thread_count()) {
    const auto first = static_cast<std::uint32_t>(4 * k);
    const std::uint32_t count = min(4u, layers.elements - first);
    std::uint32_t layer = layers.of(first, layers.at_group[first / terngrad_group]);
    float unit = layers.state[layer].scale / workers;
    if (aligned && count == 4 && layers.layer[layer].end - first >= 4) {
      const Four<std::int8_t> four = load_four(sums, k);
      float values[4];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) values[i] = static_cast<float>(four.at[i]) * unit;
      store_four_once(average, k, narrowed_four<E>(values, verdict));
      continue;
    }
    for (std::uint32_t i = first; i < first + count; ++i) {
      layer = layers.of(i, layer);
      unit = layers.state[layer].scale / workers;
      average[i] = narrowed<E>(static_cast<float>(sums[i]) * unit, verdict);
    }
  }
}

class TerngradCudaCompressor final : public Compressor {
 public:
  TerngradCudaCompressor(double clip, bool by_sum, std::uint64_t seed, const Bucket& bucket,
                         const Site& site)
      : clip_(clip),
        by_sum_(by_sum),
        seed_(seed),
        bucket_(bucket),
        site_(site),
        elements_(static_cast<std::uint32_t>(bucket.elements())),
        bytes_((elements_ + digits - 1) / digits),
        rule_{bytes_, true, Code::mismatch},
        frames_(site.world, rule_, site.device) {
    const int most = by_sum ? 127 : 32767;
    if (site.world > most)
      fail("scheme 'terngrad': expected at most ", most, " workers, got ", site.world,
           "; their sums would not fit", by_sum ? "; use travel=gather" : "");
    std::vector<Layer> layers;
    std::vector<Part> parts;
    for (const Parameter& parameter : bucket.parameters) {
      const auto first = static_cast<std::uint32_t>(parameter.offset);
      const auto count = static_cast<std::uint32_t>(parameter.count);
      const auto before = static_cast<std::uint32_t>(parts.size());
      for (std::uint64_t at = 0; at < count; at += part_elements) {
        const auto from = static_cast<std::uint32_t>(at);
        parts.push_back({first + from, std::min(part_elements, count - from),
                         static_cast<std::uint32_t>(layers.size())});
      }
      layers.push_back(
          {first, first + count, before, static_cast<std::uint32_t>(parts.size()) - before});
    }
    std::vector<std::uint32_t> at_group;
    std::uint32_t layer = 0;
    for (std::uint64_t i = 0; i < elements_; i += terngrad_group) {
      while (i >= layers[layer].end) ++layer;
      at_group.push_back(layer);
    }
    layer_count_ = static_cast<std::uint32_t>(layers.size());
    part_count_ = static_cast<std::uint32_t>(parts.size());
    layers_ = uploaded(layers, site.device);
    parts_ = uploaded(parts, site.device);
    at_group_ = uploaded(at_group, site.device);
    states_ = Buffer(Place::cuda, layers.size() * sizeof(LayerState), site.device);
    sums_ = Buffer(Place::cuda, parts.size() * sizeof(double), site.device);
    if (by_sum || elements_ == 0) return;
    constexpr std::uint32_t tile_bytes = tile_groups * group_bytes;
    frame_sums_ = block_frame::FrameSums(bytes_, {block_frame::whole_section(bytes_, tile_bytes)},
                                         (bytes_ + tile_bytes - 1) / tile_bytes,
                                         resident_blocks(4, site.device), site.device);
  }

  int rounds() const override { return 2; }

  Leg leg(std::uint64_t, int round) const override {
    if (round == 0) return {Reduction::max, DType::f32, layer_count_ * sizeof(float)};
    if (by_sum_) return {Reduction::sum, DType::i8, elements_};
    return {Reduction::gather, DType::f32, block_slot_bytes(rule_.most)};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    check(gradient);
    if (turn.round == 0) {
      measure(turn, gradient, reinterpret_cast<float*>(out.data()));
    } else {
      quantise(turn, gradient, out);
    }
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    const cudaStream_t on = handle_of(turn.stream);
    if (turn.round == 0) {
      if (layer_count_ == 0) return {};
      take_scales<<<blocks_for(layer_count_), block_threads, 0, on>>>(
          reinterpret_cast<const float*>(inbox.data.data()), layer_count_, states_.as<LayerState>(),
          bucket_.id, turn.verdict);
      check_launch("terngrad: scales");
      return {};
    }
    check(average);
    const auto workers = static_cast<float>(site_.world);
    BlockPayloads payloads;
    const FrameHeader header = block_header(scheme_id, bucket_, turn.step);
    if (!by_sum_ && elements_ == 0) frames_.open(header, rule_, inbox, turn.verdict, turn.stream);
    if (elements_ == 0) return {};
    if (!by_sum_)
      payloads = frames_.glance(header, rule_, inbox, frame_sums_, turn.verdict, turn.stream);
    with_element(average.dtype, "terngrad", [&](auto element) {
      using E = decltype(element);
      auto* const data = static_cast<typename E::Stored*>(average.data);
      if (by_sum_) {
        average_sums<E><<<blocks_for((elements_ + 3) / 4), block_threads, 0, on>>>(
            reinterpret_cast<const std::int8_t*>(inbox.data.data()), device(), workers, data,
            turn.verdict);
      } else {
        prefer_cache(average_groups<E>, sizeof(block_frame::SumTables) + sizeof(FieldTable), 4);
        launch_early(average_groups<E>, frame_sums_.blocks(), block_threads, turn.stream, payloads,
                     frame_sums_.plan(), device(), bytes_, workers, data);
      }
    });
    check_launch("terngrad: average");
    if (!by_sum_) frames_.settle(header, rule_, inbox, turn.verdict, turn.stream);
    return {};
  }

  void undo(const Turn&) override { fail("on a device a step ends with conclude()"); }
  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    fill_void_cuda(gradient.dtype, gradient.data, gradient.count, fill, turn.verdict, turn.stream);
  }
  void visit_state(StateVisitor&) override {}

 private:
  Layers device() const {
    return {layers_.as<Layer>(), states_.as<LayerState>(), at_group_.as<std::uint32_t>(),
            elements_};
  }

  void measure(const Turn& turn, const TensorView& gradient, float* out) const {
    if (layer_count_ == 0) return;
    const cudaStream_t on = handle_of(turn.stream);
    if (part_count_ > 0) {
      with_element(gradient.dtype, "terngrad", [&](auto element) {
        using E = decltype(element);
        measure_parts<E><<<part_count_, block_threads, 0, on>>>(
            static_cast<const typename E::Stored*>(gradient.data), parts_.as<Part>(),
            sums_.as<double>(), states_.as<LayerState>());
      });
      check_launch("terngrad: squares");
    }
    bound_layers<<<layer_count_, block_threads, 0, on>>>(layers_.as<Layer>(), sums_.as<double>(),
                                                         states_.as<LayerState>(), clip_, out,
                                                         turn.verdict);
    check_launch("terngrad: bounds");
  }

  void quantise(const Turn& turn, const TensorView& gradient, Bytes out) const {
    const cudaStream_t on = handle_of(turn.stream);
    const DrawKey key = draw_key(stream_seed(seed_, turn.step, bucket_.id, site_.rank));
    if (elements_ > 0) {
      with_element(gradient.dtype, "terngrad", [&](auto element) {
        using E = decltype(element);
        const auto* const data = static_cast<const typename E::Stored*>(gradient.data);
        if (by_sum_) {
          write_votes<E><<<blocks_for((elements_ + 3) / 4), block_threads, 0, on>>>(
              device(), data, key, reinterpret_cast<std::int8_t*>(out.data()));
        } else {
          pack_groups<E><<<blocks_for((bytes_ + 7) / 8), block_threads, 0, on>>>(
              device(), data, key, bytes_,
              reinterpret_cast<std::uint8_t*>(block_payload(out).data()));
        }
      });
      check_launch("terngrad: values");
    }
    if (!by_sum_)
      frames_.seal(block_header(scheme_id, bucket_, turn.step), rule_, out.data(), out,
                   turn.written, turn.stream);
  }

  void check(const TensorView& view) const {
    require_gradient(
        view, bucket_, site_.device,
        "terngrad, rank " + std::to_string(site_.rank) + ", bucket " + std::to_string(bucket_.id));
  }

  double clip_;
  bool by_sum_;
  std::uint64_t seed_;
  Bucket bucket_;
  Site site_;
  std::uint32_t elements_, bytes_;
  BlockRule rule_;
  BlockFramesCuda frames_;
  std::uint32_t layer_count_ = 0, part_count_ = 0;
  Buffer layers_, parts_, at_group_, states_, sums_;
  block_frame::FrameSums frame_sums_;  // where frames are gathered
};

}  // namespace

std::unique_ptr<Compressor> make_terngrad_cuda(double clip, bool by_sum, std::uint64_t seed,
                                               const Bucket& bucket, const Site& site) {
  return std::make_unique<TerngradCudaCompressor>(clip, by_sum, seed, bucket, site);
}

}  // namespace thinwire
