// ledger.cc: a bucket's ledger on the CPU: plain loops that a compiler vectorizes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/ledger.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <vector>

#include "thinwire/core/parallel.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

// Elements are processed in parts that fit into a cache.
constexpr std::size_t part_size = std::size_t{1} << 16;
static_assert(std::has_single_bit(part_size / norm_block));  // a whole subtree of the pairs

template <typename Body>
void for_parts(std::size_t count, Body body) {
  parallel_for((count + part_size - 1) / part_size, [&](std::size_t p) {
    body(p, p * part_size, std::min(count, (p + 1) * part_size));
  });
}

void note_bad(std::uint32_t& bad, std::uint64_t at) {
  const std::atomic_ref<std::uint32_t> first(bad);
  std::uint32_t seen = first.load();
  while (at < seen && !first.compare_exchange_weak(seen, static_cast<std::uint32_t>(at))) {
  }
}

LedgerProducts add_block(const float* kept, float share, const float* mean, std::size_t count) {
  double with_mean[norm_sums] = {}, with_self[norm_sums] = {};
  for (std::size_t i = 0; i < count; ++i) {
    const LedgerProducts one = ledger_products(kept[i], share, mean[i]);
    with_mean[i % norm_sums] += one.with_mean;
    with_self[i % norm_sums] += one.with_self;
  }
  return {add_tree<norm_sums>(with_mean), add_tree<norm_sums>(with_self)};
}

}  // namespace

void ledger_move_all(const LedgerMove& move, const LedgerArrays& arrays,
                     std::span<const LedgerPiece> pieces, const float* part, LedgerNumbers* numbers,
                     float* message) {
  const bool due = move.settles_first || move.settles_last;
  const bool opens = move.takes && !move.closes && move.has_open;
  const float share = numbers->share, first = move.settles_first ? *part : 0;
  const bool writes = ledger_writes_start(move, share);
  parallel_for(pieces.size(), [&](std::size_t p) {
    const LedgerPiece& piece = pieces[p];
    for (std::uint64_t i = 0; i < piece.count; ++i) {
      const std::uint64_t at = piece.first + i;
      LedgerElement e{piece.weights[i], arrays.start[at], due ? arrays.due[at] : 0,
                      opens ? arrays.open[at] : 0};
      const float now = ledger_move(move, share, first, e);
      if (move.takes && !within_limit(now)) note_bad(numbers->bad, at);
      piece.weights[i] = e.weight;
      if (writes) arrays.start[at] = e.start;
      if (opens) arrays.open[at] = e.open;
      if (move.takes && move.closes) message[at] = now;
    }
  });
}

void ledger_follow_all(const LedgerMove& move, const LedgerArrays& arrays, const float* part,
                       const LedgerNumbers* numbers, float* message, float* kept) {
  const bool due = move.settles_first || move.settles_last;
  const bool opens = move.takes && move.closes && move.has_open && !move.open_clear;
  const float share = numbers->share, first = move.settles_first ? *part : 0;
  for_parts(arrays.count, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      LedgerBooks books{arrays.start[i], due ? arrays.due[i] : 0, opens ? arrays.open[i] : 0,
                        move.closes ? message[i] : 0};
      const float keeps = ledger_follow(move, share, first, books);
      arrays.start[i] = books.start;
      if (due) arrays.due[i] = books.due;
      if (!move.closes) continue;
      message[i] = books.message;
      kept[i] = keeps;
    }
  });
}

void ledger_acknowledge_all(const LedgerAcknowledge& rule, const LedgerArrays& arrays,
                            const float* mean, const float* own, const float* kept,
                            const Verdict* verdict) {
  if (verdict != nullptr && verdict->void_step()) return;
  for_parts(arrays.count, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      float held = rule.book_b ? arrays.held[i] : 0;
      ledger_acknowledge(rule, mean[i], rule.book_b ? own[i] : 0, kept[i], arrays.anchor[i],
                         arrays.due[i], held);
      if (rule.book_b) arrays.held[i] = held;
    }
  });
}

LedgerProducts ledger_products_all(const float* kept, float share, const float* mean,
                                   std::size_t count) {
  std::vector<LedgerProducts> parts((count + part_size - 1) / part_size);
  for_parts(count, [&](std::size_t p, std::size_t begin, std::size_t end) {
    PairwiseSum with_mean, with_self;
    for (std::size_t i = begin; i < end; i += norm_block) {
      const LedgerProducts block =
          add_block(kept + i, share, mean + i, std::min(norm_block, end - i));
      with_mean.add(block.with_mean);
      with_self.add(block.with_self);
    }
    parts[p] = {with_mean.total(), with_self.total()};
  });
  PairwiseSum with_mean, with_self;
  for (const LedgerProducts& one : parts) {
    with_mean.add(one.with_mean);
    with_self.add(one.with_self);
  }
  return {with_mean.total(), with_self.total()};
}

void ledger_copy_all(LedgerCopy way, std::span<const LedgerPiece> pieces, float* array) {
  for (const LedgerPiece& piece : pieces) {
    float* const there = array + piece.first;
    if (way == LedgerCopy::out)
      std::copy_n(piece.weights, piece.count, there);
    else
      std::copy_n(there, piece.count, piece.weights);
  }
}

std::uint64_t ledger_digest_all(const float* array, std::size_t count) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i)
    sum += ledger_digest(std::bit_cast<std::uint32_t>(array[i]), i);
  return sum;
}

}  // namespace thinwire
