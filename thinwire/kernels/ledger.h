// ledger.h: the arithmetic of delayed averaging for one element, on the CPU and on a GPU. A worker
// has weights w, the anchor x, the weights at the start of the open step (start), the update of
// the finished steps of the open round (open), and a correction that is not made yet (due).
// delay/ledger.h explains them.
//
// What the end of a step does is cut in two. ledger_move() changes the weights: on a GPU it runs in
// the training's own stream, so it touches nothing else that can wait: w, start and due are read, w
// and the update are written, 20 bytes per element (24 where the whole update stays in the weights:
// start is written, too). ledger_follow() does the rest in another stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "thinwire/core/cuda.h"
#include "thinwire/core/device.h"
#include "thinwire/core/verdict.h"
#include "thinwire/kernels/ledger_piece.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {

// What the end of a step does, in this order.
struct LedgerMove {
  bool settles_first = false;  // a correction is made: the share *part of what is due
  bool floors = false;         // then weights below 0 become 0: second moments
  bool takes = false;          // the step's own update is recorded
  bool closes = false;         // ... and with it the open round. With `takes` off: by zeros
  bool settles_last = false;   // a correction is made: the share `pace` of what is due
  float pace = 1;

  bool has_open = false;    // finished steps are recorded in `open`
  bool open_clear = false;  // it holds none yet, whatever its memory says
  bool gives_back = false;  // a closed round takes the own update out of the weights
  bool pulls = false;       // a closed round keeps the weights instead of its update
};

// One element in ledger_move().
struct LedgerElement {
  float weight = 0, start = 0, due = 0, open = 0;
};

THINWIRE_HD inline void ledger_settle(float part, LedgerElement& e) {
  const float made = part * e.due;
  e.weight += made;
  e.start += made;
  e.due -= made;
}

// The share that the weights keep of the update that is taken.
THINWIRE_HD inline float ledger_kept(const LedgerMove& move, float share) {
  return move.closes && move.gives_back ? 0.0f : share;
}

// Whether `start` must be written with the weights: it then is what no sum gives, the weights
// themselves, or the update is not stored.
THINWIRE_HD inline bool ledger_writes_start(const LedgerMove& move, float share) {
  const bool whole = ledger_kept(move, share) == 1;
  return move.takes && move.closes == whole;
}

// Changes all of `e` and returns the update of this step. `share` is that of the open round.
THINWIRE_HD inline float ledger_move(const LedgerMove& move, float share, float part,
                                     LedgerElement& e) {
  float now = 0;
  if (move.settles_first) {
    ledger_settle(part, e);
    if (move.floors && e.weight < 0) e.weight = 0;
  }
  if (move.takes) {
    now = 0.0f + (e.weight - e.start);  // -0 counts as 0
    const float keep = ledger_kept(move, share);
    if (keep != 1) e.weight = e.start + keep * now;
    if (!move.closes && move.open_clear) e.open = 0;
    // With share 1 the end of the round finds the whole update in the weights.
    if (!move.closes && keep != 1) e.open += now;
    if (move.closes || keep != 1) e.start = e.weight;
  }
  if (move.settles_last) ledger_settle(move.pace, e);
  return now;
}

// One element in ledger_follow(). `start` is that before the move, or, where it was written, after
// it; `message` is the update.
struct LedgerBooks {
  float start = 0, due = 0, open = 0, message = 0;
};

// What follows from the same move: `start` and `due` after it, and of a closed round its message;
// returns what is kept of it.
THINWIRE_HD inline float ledger_follow(const LedgerMove& move, float share, float part,
                                       LedgerBooks& b) {
  const float keep = ledger_kept(move, share);
  const bool written = ledger_writes_start(move, share);
  float kept = 0;
  LedgerElement e{0, b.start, b.due};
  if (move.settles_first) ledger_settle(part, e);
  if (move.takes && move.closes && keep != 1) e.start = e.start + keep * b.message;
  if (move.closes) {
    if (!move.takes)
      b.message = 0;
    else if (move.has_open && !move.open_clear)
      b.message = b.open + b.message;
    kept = !move.pulls ? keep * b.message : written ? b.start : e.start;
  }
  if (move.settles_last) ledger_settle(move.pace, e);
  b.due = e.due;
  if (!written) b.start = e.start;
  return kept;
}

// How a mean is acknowledged.
struct LedgerAcknowledge {
  bool pulls = false;
  bool book_b = false;
  float rate = 0;  // of a pull
};

// x, due and held after the mean of a round whose own update left `kept`. `own` is the own message
// as others decoded it.
THINWIRE_HD inline void ledger_acknowledge(const LedgerAcknowledge& rule, float mean, float own,
                                           float kept, float& anchor, float& due, float& held) {
  anchor += mean;
  if (rule.pulls) {
    due += rule.rate * (anchor - kept);
  } else {
    if (rule.book_b) held += kept - own;
    due += mean - (rule.book_b ? own : kept);
  }
}

// -- the measured share

// Products of own updates with the mean and with themselves. Sums have the order of norm.h.
struct LedgerProducts {
  double with_mean = 0, with_self = 0;
};

THINWIRE_HD inline LedgerProducts ledger_products(float kept, float share, float mean) {
  const double own = kept / share;
  return {own * mean, own * own};
}

// The numbers of a ledger that its rounds change, in the memory of its device.
struct LedgerNumbers {
  LedgerProducts sums;      // over some rounds
  float share = 1;          // of the open round
  std::uint32_t bad = ~0u;  // the first element whose update was beyond the limit
};

THINWIRE_HD inline void ledger_listen(double memory, const LedgerProducts& round,
                                      LedgerProducts& sums) {
  // The difference is NaN where one of them is not finite.
  if (round.with_mean - round.with_mean != 0 || round.with_self - round.with_self != 0) return;
  sums.with_mean = memory * sums.with_mean + round.with_mean;
  sums.with_self = memory * sums.with_self + round.with_self;
}

// Own updates that are noise share 1 / workers with the mean; updates that all workers make share
// everything. The larger the common part, the larger the share that is applied at once: from a
// common part of a third on, it is all.
THINWIRE_HD inline float ledger_share(const LedgerProducts& sums, std::uint64_t workers) {
  if (sums.with_self == 0 || workers == 1) return 1;
  const double noise = 1 / static_cast<double>(workers);
  const double common = (sums.with_mean / sums.with_self - noise) / (1 - noise);
  const double share = 0.5 + 1.5 * common;
  return static_cast<float>(share < 0.5 ? 0.5 : share > 1 ? 1.0 : share);
}

// The share of a correction that is made, if none may be longer than `clip` times the mean.
THINWIRE_HD inline double ledger_clip(double clip, double correction_squared, double mean_squared) {
  const double longest = clip * std::sqrt(mean_squared), length = std::sqrt(correction_squared);
  return length > longest ? longest / length : 1;
}

// -- arrays

// Arrays over a bucket, in the order of its elements; null where a ledger has none.
struct LedgerArrays {
  std::size_t count = 0;
  float *anchor = nullptr, *start = nullptr, *due = nullptr, *open = nullptr, *held = nullptr;
};

// All of a bucket. `part` and `share` point to the memory of the device. Where a step is taken and
// the round closed, `message` becomes the update.
void ledger_move_all(const LedgerMove& move, const LedgerArrays& arrays,
                     std::span<const LedgerPiece> pieces, const float* part, LedgerNumbers* numbers,
                     float* message);
void ledger_follow_all(const LedgerMove& move, const LedgerArrays& arrays, const float* part,
                       const LedgerNumbers* numbers, float* message, float* kept);
// Does nothing where the round is void.
void ledger_acknowledge_all(const LedgerAcknowledge& rule, const LedgerArrays& arrays,
                            const float* mean, const float* own, const float* kept,
                            const Verdict* verdict);
LedgerProducts ledger_products_all(const float* kept, float share, const float* mean,
                                   std::size_t count);

enum class LedgerCopy : std::uint8_t { out, in };  // from the weights to an array, or back
void ledger_copy_all(LedgerCopy way, std::span<const LedgerPiece> pieces, float* array);

// A checksum of the bits of an array that does not depend on the order of additions, for comparing
// the anchors of all workers. One bit that differs changes it, but for one case in 2^64.
THINWIRE_HD inline std::uint64_t ledger_digest(std::uint32_t bits, std::uint64_t index) {
  std::uint64_t z = ((index << 32) ^ bits) + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
std::uint64_t ledger_digest_all(const float* array, std::size_t count);

// -- the same on a GPU: enqueued; all pointers are to device memory, `pieces` too

void ledger_move_cuda(const LedgerMove& move, const LedgerArrays& arrays, const LedgerPiece* pieces,
                      std::size_t count, const float* part, LedgerNumbers* numbers, float* message,
                      Stream stream);
void ledger_follow_cuda(const LedgerMove& move, const LedgerArrays& arrays, const float* part,
                        const LedgerNumbers* numbers, float* message, float* kept, Stream stream);
// With `sums`, room for ledger_scratch(count) doubles, also adds up the products of the round; they
// are then in sums[0] and sums[1]. `share` is the round's.
void ledger_acknowledge_cuda(const LedgerAcknowledge& rule, const LedgerArrays& arrays,
                             const float* mean, const float* own, const float* kept,
                             const float* share, double* sums, const Verdict* verdict,
                             Stream stream);
std::size_t ledger_scratch(std::size_t count);
// After it: the round's products enter numbers->sums.
void ledger_listen_cuda(double memory, const double* sums, LedgerNumbers* numbers,
                        const Verdict* verdict, Stream stream);
// A round was closed: *share becomes its share, and numbers->share that of the next one.
void ledger_share_cuda(LedgerNumbers* numbers, float* share, std::uint64_t workers, bool measures,
                       Stream stream);
void ledger_clip_cuda(double clip, const double* correction, const double* mean, float* part,
                      Stream stream);
void ledger_copy_cuda(LedgerCopy way, const LedgerPiece* pieces, std::size_t count, float* array,
                      Stream stream);
// Writes *digest.
void ledger_digest_cuda(const float* array, std::size_t count, std::uint64_t* digest,
                        Stream stream);

}  // namespace thinwire
