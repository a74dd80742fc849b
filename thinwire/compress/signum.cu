// signum.cu: signs of the momentum, and the majority's, in device memory. A block handles a chunk
// of votes (wire/votes.h): 4096 elements, a word of 32 votes per thread when they are counted.
// SPDX-License-Identifier: Apache-2.0
#include <cub/block/block_scan.cuh>

#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/coded_encode.cuh"
#include "thinwire/compress/frames.cuh"
#include "thinwire/compress/frames.h"
#include "thinwire/kernels/put_back.h"
#include "thinwire/kernels/signum.h"
#include "thinwire/wire/votes.h"

namespace thinwire {
namespace {

using namespace coded;

constexpr std::uint8_t scheme_id = 12;
constexpr std::uint32_t chunk_elements = votes_chunk, chunk_bytes = chunk_elements / 8;
constexpr unsigned scan_threads = 1024;
constexpr std::uint32_t no_zeros = ~0u;
constexpr std::uint32_t row_words = chunk_elements / warp;  // words of 32 votes in a chunk

// Where the parts of a payload are.
struct VotePlaces {
  std::uint32_t elements, chunks;
  std::uint32_t signs, zeros;  // offsets
};

VotePlaces places_of(std::size_t elements) {
  const std::size_t signs = votes_signs_at(elements);
  return {static_cast<std::uint32_t>(elements),
          static_cast<std::uint32_t>((elements + votes_chunk - 1) / votes_chunk),
          static_cast<std::uint32_t>(signs),
          static_cast<std::uint32_t>(signs + (elements + 7) / 8)};
}

__host__ __device__ std::uint32_t chunk_count(const VotePlaces& places, std::uint32_t chunk) {
  const std::uint32_t left = places.elements - chunk * chunk_elements;
  return left < chunk_elements ? left : chunk_elements;
}

struct TakeIn {
  float momentum;
  float* m;
  VotePlaces places;
};

// m of a thread's elements first, first + stride... after the gradient; `sound` becomes false where
// that is beyond the limit. All loads are under way at once.
template <unsigned count, typename E>
__device__ void next_momenta(const TakeIn& a, const typename E::Stored* gradient,
                             std::uint64_t first, std::uint32_t stride, float* m, bool& sound) {
  typename E::Stored g[count];
#pragma unroll
  for (unsigned k = 0; k < count; ++k) {
    const std::uint64_t i = first + std::uint64_t{k} * stride;
    g[k] = i < a.places.elements ? gradient[i] : typename E::Stored{};
    m[k] = i < a.places.elements ? a.m[i] : 0;
  }
#pragma unroll
  for (unsigned k = 0; k < count; ++k) {
    const std::uint64_t i = first + std::uint64_t{k} * stride;
    const float value = E::widen(g[k]);
    sound = sound && within_limit(value);
    m[k] = signum_next(a.momentum, value, m[k]);
    if (i < a.places.elements) a.m[i] = m[k];
  }
}

// A block per chunk: signs into the payload, zeros and whether there are any aside. Lane k of a
// warp writes the words of its row k.
template <typename E>
__global__ void __launch_bounds__(block_threads)
    vote_chunks(const TakeIn a, const typename E::Stored* gradient, std::uint8_t* payload,
                std::uint8_t* zeros, std::uint32_t* has_zeros, FrameState* frame,
                Verdict* verdict) {
  constexpr unsigned rows = chunk_elements / block_threads;  // of a warp
  const std::uint32_t chunk = blockIdx.x, lane = threadIdx.x % warp;
  const std::uint32_t bytes = (chunk_count(a.places, chunk) + 7) / 8;
  const std::uint32_t warp_first = threadIdx.x / warp * rows * warp;
  std::uint8_t* const signs = payload + a.places.signs + std::size_t{chunk} * chunk_bytes;
  zeros += std::size_t{chunk} * chunk_bytes;
  bool sound = true;
  float m[rows];
  next_momenta<rows, E>(a, gradient, std::uint64_t{chunk} * chunk_elements + warp_first + lane,
                        warp, m, sound);
  std::uint32_t below = 0, none = 0;  // of row `lane`
  const std::uint32_t left = a.places.elements - chunk * chunk_elements;
#pragma unroll
  for (unsigned k = 0; k < rows; ++k) {
    const std::uint32_t negative = __ballot_sync(~0u, m[k] < 0);
    const std::uint32_t zero = __ballot_sync(~0u, m[k] == 0 && warp_first + warp * k + lane < left);
    if (lane != k) continue;
    below = negative;
    none = zero;
  }
  if (lane < rows) {
    const std::uint32_t at = (warp_first + warp * lane) / 8;
    write_word(below, signs + at, bytes > at ? bytes - at : 0);
    write_word(none, zeros + at, bytes > at ? bytes - at : 0);
  }
  const bool any = __syncthreads_or(none != 0) != 0;
  if (threadIdx.x == 0) has_zeros[chunk] = any ? 1 : 0;
  if (!sound) report_unsound(frame, verdict);
}

// The sum of the threads before this one, and of all. For one block of scan_threads.
__device__ std::uint32_t scan_before(std::uint32_t mine, std::uint32_t& all) {
  using Scan = cub::BlockScan<std::uint32_t, scan_threads>;
  __shared__ typename Scan::TempStorage storage;
  std::uint32_t before = 0;
  Scan(storage).ExclusiveSum(mine, before, all);
  __syncthreads();
  return before;
}

// One block: where the zeros of each chunk go, the flags, and the length of the payload. A thread
// takes whole bytes of flags.
__global__ void __launch_bounds__(scan_threads)
    lay_out(const VotePlaces places, const std::uint32_t* has_zeros, std::uint32_t* zeros_at,
            std::uint8_t* payload, FrameState* frame) {
  const std::uint32_t flag_bytes = places.signs;
  const std::uint32_t each = (flag_bytes + scan_threads - 1) / scan_threads;
  const std::uint32_t from = min(places.chunks, 8 * each * threadIdx.x);
  const std::uint32_t to = min(places.chunks, from + 8 * each);
  std::uint32_t mine = 0, all = 0;
  for (std::uint32_t c = from; c < to; ++c)
    if (has_zeros[c] != 0) mine += (chunk_count(places, c) + 7) / 8;
  std::uint32_t at = places.zeros + scan_before(mine, all);
  for (std::uint32_t c = from; c < to; c += 8) {
    unsigned flags = 0;
    for (std::uint32_t k = c; k < min(to, c + 8); ++k) {
      const bool flagged = has_zeros[k] != 0;
      zeros_at[k] = flagged ? at : no_zeros;
      if (!flagged) continue;
      flags |= 1u << (k - c);
      at += (chunk_count(places, k) + 7) / 8;
    }
    payload[c / 8] = static_cast<std::uint8_t>(flags);
  }
  if (threadIdx.x == 0) frame->payload = std::uint64_t{places.zeros} + all;
}

// A block per chunk: its zeros, where it has some.
__global__ void copy_zeros(const VotePlaces places, const std::uint8_t* zeros,
                           const std::uint32_t* zeros_at, std::uint8_t* payload) {
  const std::uint32_t at = zeros_at[blockIdx.x];
  if (at == no_zeros) return;
  const std::uint32_t bytes = (chunk_count(places, blockIdx.x) + 7) / 8;
  for (std::uint32_t i = threadIdx.x; i < bytes; i += blockDim.x)
    payload[at + i] = zeros[std::size_t{blockIdx.x} * chunk_bytes + i];
}

// A block per rank: where the zeros of its chunks are. Checks flags and length, as
// VoteReader::open() does.
__global__ void __launch_bounds__(scan_threads)
    read_flags(const BlockPayloads in, const VotePlaces places, std::uint32_t* zeros_at) {
  const std::uint32_t rank = blockIdx.x;
  if (in.verdict->void_step()) return;
  const std::uint8_t* const payload = block_frame::payload_of(in, rank);
  const std::uint32_t length = in.opened[rank].bytes;
  Code code = Code::ok;
  if (length < places.zeros) {
    code = Code::truncated;
  } else if ((places.chunks % 8 != 0 && payload[places.signs - 1] >> places.chunks % 8 != 0) ||
             (places.elements % 8 != 0 && payload[places.zeros - 1] >> places.elements % 8 != 0)) {
    code = Code::bad_value;
  }
  std::uint32_t mine = 0, all = 0;
  const std::uint32_t each = (places.signs + scan_threads - 1) / scan_threads;
  const std::uint32_t from = min(places.chunks, 8 * each * threadIdx.x);
  const std::uint32_t to = min(places.chunks, from + 8 * each);
  const auto flagged = [&](std::uint32_t c) { return (payload[c / 8] >> c % 8 & 1) != 0; };
  if (code == Code::ok)
    for (std::uint32_t c = from; c < to; ++c)
      if (flagged(c)) mine += (chunk_count(places, c) + 7) / 8;
  std::uint32_t at = places.zeros + scan_before(mine, all);
  if (code == Code::ok && length - places.zeros != all)
    code = length - places.zeros < all ? Code::truncated : Code::mismatch;
  if (code == Code::ok) {
    for (std::uint32_t c = from; c < to; ++c) {
      const bool some = flagged(c);
      zeros_at[std::size_t{rank} * places.chunks + c] = some ? at : no_zeros;
      if (some) at += (chunk_count(places, c) + 7) / 8;
    }
  } else if (threadIdx.x == 0) {
    block_frame::accuse(in.verdict, code, rank, in.bucket);
  }
}

// Counts of 32 elements at once: bit i of plane p is bit p of element i's count.
template <unsigned planes>
struct Counters {
  std::uint32_t plane[planes] = {};

  // Adds 2^p where the mask is set.
  __device__ void add(std::uint32_t mask, unsigned p) {
#pragma unroll
    for (unsigned k = 0; k < planes; ++k) {
      if (k < p) continue;
      const std::uint32_t carry = plane[k] & mask;
      plane[k] ^= mask;
      mask = carry;
    }
  }
  // Where the counts are below and equal to a number.
  __device__ void compare(std::uint32_t number, std::uint32_t& below, std::uint32_t& equal) const {
    below = 0;
    equal = ~0u;
#pragma unroll
    for (unsigned k = planes; k-- > 0;) {
      if ((number >> k & 1) != 0) {
        below |= equal & ~plane[k];
        equal &= plane[k];
      } else {
        equal &= ~plane[k];
      }
    }
  }
};

// A block per chunk. A vote counts 2 where it is negative and 1 where it is zero, so the majority
// is positive where the count is below the number of ranks.
template <typename E, unsigned planes>
__global__ void __launch_bounds__(row_words)
    count_votes(const BlockPayloads in, const VotePlaces places, const std::uint32_t* zeros_at,
                typename E::Stored* average) {
  __shared__ std::uint32_t below[row_words], equal[row_words];
  const Verdict verdict = *in.verdict;
  if (verdict.void_step() || verdict.unsound != 0) return;
  const std::uint32_t chunk = blockIdx.x, count = chunk_count(places, chunk);
  const std::uint32_t bytes = (count + 7) / 8, mine = 4 * threadIdx.x;
  const std::uint32_t here = mine < bytes ? min(4u, bytes - mine) : 0;
  Counters<planes> counters;
  for (std::uint32_t rank = 0; rank < in.ranks; ++rank) {
    const std::uint8_t* const payload = block_frame::payload_of(in, rank);
    std::uint32_t negative = 0, zero = 0;
    if (here > 0)
      negative = static_cast<std::uint32_t>(
          load_bytes(payload + places.signs + std::size_t{chunk} * chunk_bytes + mine, here));
    const std::uint32_t at = zeros_at[std::size_t{rank} * places.chunks + chunk];
    if (at != no_zeros) {
      if (here > 0) zero = static_cast<std::uint32_t>(load_bytes(payload + at + mine, here));
      // A zero has no sign; there is at least one; padding is zero.
      const std::uint32_t left = count > 32 * threadIdx.x ? count - 32 * threadIdx.x : 0;
      const std::uint32_t outside = left >= 32 ? 0 : ~0u << left;
      const bool good = (zero & negative) == 0 && (zero & outside) == 0;
      const bool some = __syncthreads_or(zero != 0) != 0;
      if (!good || (!some && threadIdx.x == 0))
        block_frame::accuse(in.verdict, Code::bad_value, rank, in.bucket);
    }
    counters.add(zero, 0);
    counters.add(negative, 1);
  }
  counters.compare(in.ranks, below[threadIdx.x], equal[threadIdx.x]);
  __syncthreads();
  average += std::size_t{chunk} * chunk_elements;
  const unsigned lane = threadIdx.x % warp;
#pragma unroll 8
  for (std::uint32_t row = threadIdx.x / warp; row < row_words; row += row_words / warp) {
    const std::uint32_t i = warp * row + lane;
    const bool positive = (below[row] >> lane & 1) != 0, none = (equal[row] >> lane & 1) != 0;
    if (i < count) average[i] = E::narrow(none ? 0.0f : positive ? 1.0f : -1.0f);
  }
}

// travel=sum: a byte per vote, and one more that is set where a gradient was beyond the limit.
template <typename E>
__global__ void __launch_bounds__(block_threads)
    vote_bytes(const TakeIn a, const typename E::Stored* gradient, std::int8_t* votes,
               Verdict* verdict) {
  constexpr unsigned batch = 4;
  bool sound = true;
  const auto stride = static_cast<std::uint32_t>(thread_count());
  for (std::uint64_t first = thread_index(); first < a.places.elements; first += batch * stride) {
    float m[batch];
    next_momenta<batch, E>(a, gradient, first, stride, m, sound);
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const std::uint64_t i = first + std::uint64_t{k} * stride;
      if (i < a.places.elements)
        votes[i] = static_cast<std::int8_t>((m[k] > 0 ? 1 : 0) - (m[k] < 0 ? 1 : 0));
    }
  }
  if (sound) return;
  votes[a.places.elements] = 1;
  verdict->unsound = 1;
}

template <typename E>
__global__ void __launch_bounds__(block_threads)
    judge_sums(const std::int8_t* votes, typename E::Stored* average, std::size_t count,
               Verdict* verdict) {
  const bool skipped = votes[count] != 0;
  if (skipped && thread_index() == 0) verdict->skipped = 1;
  if (skipped || verdict->unsound != 0) return;
  const auto sign = [](int votes_for) {
    return E::narrow(votes_for > 0 ? 1.0f : votes_for < 0 ? -1.0f : 0.0f);
  };
  const std::size_t fours =
      reinterpret_cast<std::uintptr_t>(average) % alignof(Four<typename E::Stored>) == 0 ? count / 4
                                                                                         : 0;
  for (std::size_t k = thread_index(); k < fours; k += thread_count()) {
    const Four<std::int8_t> four = load_four(votes, k);
    store_four_once(average, k,
                    Four<typename E::Stored>{sign(four.at[0]), sign(four.at[1]), sign(four.at[2]),
                                             sign(four.at[3])});
  }
  for (std::size_t i = 4 * fours + thread_index(); i < count; i += thread_count())
    average[i] = sign(votes[i]);
}

// A momentum that has seen a bad gradient restarts. Sending takes nothing out of it.
template <typename E>
__global__ void __launch_bounds__(block_threads)
    conclude_votes(float* m, typename E::Stored* gradient, std::size_t count, float fill,
                   const Verdict* verdict) {
  if (!verdict->void_step()) return;
  for (std::size_t i = thread_index(); i < count; i += thread_count()) {
    if (verdict->unsound != 0) m[i] = 0;
    gradient[i] = E::narrow(fill);
  }
}

class SignumCudaCompressor final : public Compressor {
 public:
  SignumCudaCompressor(float momentum, bool by_sum, const Bucket& bucket, const Site& site)
      : momentum_(momentum),
        by_sum_(by_sum),
        bucket_(bucket),
        site_(site),
        places_(places_of(bucket.elements())),
        rule_{votes_bound(bucket.elements()), false, Code::mismatch},
        frames_(site.world, rule_, site.device),
        m_(Place::cuda, bucket.elements() * sizeof(float), site.device) {
    const int most = by_sum ? 127 : most_workers;
    if (site.world > most)
      fail("signum, rank ", site.rank, ", bucket ", bucket.id, ": votes of at most ", most,
           " workers are counted on CUDA, got ", site.world);
    if (by_sum) return;
    const auto chunks = std::size_t{places_.chunks};
    const auto ranks = static_cast<std::size_t>(site.world);
    zeros_ = Buffer(Place::cuda, chunks * chunk_bytes, site.device);
    has_zeros_ = Buffer(Place::cuda, chunks * sizeof(std::uint32_t), site.device);
    zeros_at_ = Buffer(Place::cuda, chunks * ranks * sizeof(std::uint32_t), site.device);
  }

  Leg leg(std::uint64_t, int) const override {
    if (by_sum_) return {Reduction::sum, DType::i8, bucket_.elements() + 1};
    return {Reduction::gather, DType::f32, block_slot_bytes(rule_.most)};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    check(gradient);
    stream_ = turn.stream;
    const cudaStream_t on = handle_of(turn.stream);
    const TakeIn a{momentum_, m_.as<float>(), places_};
    if (by_sum_) zero_bytes(out.data() + bucket_.elements(), 1, turn.stream);
    if (gradient.count > 0)
      with_element(gradient.dtype, "signum", [&](auto element) {
        using E = decltype(element);
        const auto* const data = static_cast<const typename E::Stored*>(gradient.data);
        if (by_sum_) {
          vote_bytes<E><<<blocks_for(gradient.count), block_threads, 0, on>>>(
              a, data, reinterpret_cast<std::int8_t*>(out.data()), turn.verdict);
        } else {
          vote_chunks<E><<<places_.chunks, block_threads, 0, on>>>(
              a, data, payload_of(out), zeros_.as<std::uint8_t>(), has_zeros_.as<std::uint32_t>(),
              frames_.state(), turn.verdict);
        }
      });
    check_launch("signum");
    if (!by_sum_) seal(turn, out);
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    check(average);
    stream_ = turn.stream;
    if (by_sum_) {
      with_element(average.dtype, "signum", [&](auto element) {
        using E = decltype(element);
        judge_sums<E><<<blocks_for(average.count), block_threads, 0, handle_of(turn.stream)>>>(
            reinterpret_cast<const std::int8_t*>(inbox.data.data()),
            static_cast<typename E::Stored*>(average.data), average.count, turn.verdict);
      });
      check_launch("signum: sums");
      return {};
    }
    const BlockPayloads payloads =
        frames_.open(header(turn), rule_, inbox, turn.verdict, turn.stream);
    read_flags<<<payloads.ranks, scan_threads, 0, handle_of(turn.stream)>>>(
        payloads, places_, zeros_at_.as<std::uint32_t>());
    check_launch("signum: flags");
    if (average.count > 0) count(payloads, average, turn.stream);
    return {};
  }

  void undo(const Turn&) override { fail("on a device a step ends with conclude()"); }

  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    if (gradient.count == 0) return;
    with_element(gradient.dtype, "signum", [&](auto element) {
      using E = decltype(element);
      conclude_votes<E><<<std::min(1024u, blocks_for(gradient.count)), block_threads, 0,
                          handle_of(turn.stream)>>>(m_.as<float>(),
                                                    static_cast<typename E::Stored*>(gradient.data),
                                                    gradient.count, fill, turn.verdict);
    });
    check_launch("signum: conclude");
  }

  void keep(const Turn& turn) override {
    const Buffer* const arrays[] = {&m_};
    kept_.keep(arrays, site_.device, turn.stream);
  }
  void restore(const Turn& turn) override {
    const Buffer* const arrays[] = {&m_};
    kept_.restore(arrays, turn.verdict, turn.stream);
  }

  void visit_state(StateVisitor& visitor) override {
    std::vector<float> host(bucket_.elements());
    copy_bytes(host.data(), m_.data(), m_.size(), stream_);
    synchronize(stream_);
    visit_by_parameter(visitor, bucket_, "m", host, Share::local);
    copy_bytes(m_.data(), host.data(), m_.size(), stream_);
    synchronize(stream_);
  }

 private:
  static constexpr int most_workers = 32767;

  static std::uint8_t* payload_of(Bytes out) {
    return reinterpret_cast<std::uint8_t*>(block_payload(out).data());
  }

  FrameHeader header(const Turn& turn) const { return block_header(scheme_id, bucket_, turn.step); }

  void seal(const Turn& turn, Bytes out) const {
    const cudaStream_t on = handle_of(turn.stream);
    auto* const zeros_at = zeros_at_.as<std::uint32_t>();
    lay_out<<<1, scan_threads, 0, on>>>(places_, has_zeros_.as<std::uint32_t>(), zeros_at,
                                        payload_of(out), frames_.state());
    check_launch("signum: layout");
    if (places_.chunks > 0) {
      copy_zeros<<<places_.chunks, block_threads, 0, on>>>(places_, zeros_.as<std::uint8_t>(),
                                                           zeros_at, payload_of(out));
      check_launch("signum: zeros");
    }
    frames_.seal(header(turn), rule_, out.data(), out, turn.written, turn.stream);
  }

  void count(const BlockPayloads& payloads, const TensorView& average, Stream stream) const {
    with_element(average.dtype, "signum", [&](auto element) {
      using E = decltype(element);
      // Counts go up to twice the number of ranks.
      const auto kernel = payloads.ranks < 8     ? count_votes<E, 4>
                          : payloads.ranks < 128 ? count_votes<E, 8>
                                                 : count_votes<E, 16>;
      kernel<<<places_.chunks, row_words, 0, handle_of(stream)>>>(
          payloads, places_, zeros_at_.as<std::uint32_t>(),
          static_cast<typename E::Stored*>(average.data));
    });
    check_launch("signum: count");
  }

  void check(const TensorView& view) const {
    require_gradient(
        view, bucket_, site_.device,
        "signum, rank " + std::to_string(site_.rank) + ", bucket " + std::to_string(bucket_.id));
  }

  float momentum_;
  bool by_sum_;
  Bucket bucket_;
  Site site_;
  VotePlaces places_;
  BlockRule rule_;
  BlockFramesCuda frames_;
  Buffer m_;
  Buffer zeros_, has_zeros_, zeros_at_;  // of the chunks
  KeptCopy kept_;
  Stream stream_;  // of the last step
};

}  // namespace

std::unique_ptr<Compressor> make_signum_cuda(float momentum, bool by_sum, const Bucket& bucket,
                                             const Site& site) {
  return std::make_unique<SignumCudaCompressor>(momentum, by_sum, bucket, site);
}

}  // namespace thinwire
