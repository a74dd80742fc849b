// votes.cc: flags, signs, and the zeros of the chunks that have some.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/votes.h"

#include <algorithm>

namespace thinwire {
namespace {

constexpr std::size_t chunk_bytes = votes_chunk / 8;

std::size_t chunks_of(std::size_t elements) { return (elements + votes_chunk - 1) / votes_chunk; }
std::size_t bytes_of_bits(std::size_t bits) { return (bits + 7) / 8; }

bool any(ConstBytes bits) {
  return std::any_of(bits.begin(), bits.end(), [](std::byte byte) { return byte != std::byte{}; });
}

bool bit_of(ConstBytes bits, std::size_t i) {
  return (std::to_integer<unsigned>(bits[i / 8]) >> i % 8 & 1) != 0;
}

bool padding_is_zero(ConstBytes bits, std::size_t count) {
  return count % 8 == 0 || std::to_integer<unsigned>(bits.back()) >> count % 8 == 0;
}

ConstBytes chunk_of(ConstBytes plane, std::size_t chunk) {
  const std::size_t at = chunk * chunk_bytes;
  return plane.subspan(at, std::min(chunk_bytes, plane.size() - at));
}

}  // namespace

std::size_t votes_signs_at(std::size_t elements) { return bytes_of_bits(chunks_of(elements)); }

std::size_t votes_bound(std::size_t elements) {
  return votes_signs_at(elements) + 2 * bytes_of_bits(elements);
}

std::size_t seal_votes(std::size_t elements, ConstBytes zeros, Bytes payload) {
  std::size_t at = votes_signs_at(elements);
  std::fill_n(payload.begin(), at, std::byte{});
  at += bytes_of_bits(elements);
  for (std::size_t chunk = 0; chunk < chunks_of(elements); ++chunk) {
    const ConstBytes part = chunk_of(zeros, chunk);
    if (!any(part)) continue;
    payload[chunk / 8] |= std::byte{1} << chunk % 8;
    std::copy(part.begin(), part.end(), payload.begin() + static_cast<std::ptrdiff_t>(at));
    at += part.size();
  }
  return at;
}

std::size_t VoteReader::chunk_bits(std::size_t chunk) const {
  return std::min(votes_chunk, elements_ - chunk * votes_chunk);
}

Status VoteReader::open(std::size_t elements, ConstBytes payload) {
  elements_ = elements;
  chunk_ = 0;
  const std::size_t chunks = chunks_of(elements), head = votes_signs_at(elements);
  const std::size_t signs = bytes_of_bits(elements);
  if (payload.size() < head + signs) return {Code::truncated, "votes: payload ends in its signs"};
  flags_ = payload.first(head);
  signs_ = payload.subspan(head, signs);
  zeros_ = payload.subspan(head + signs);
  if (!padding_is_zero(flags_, chunks) || !padding_is_zero(signs_, elements))
    return {Code::bad_value, "votes: set bits in the padding"};
  ConstBytes rest = zeros_;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (!bit_of(flags_, chunk)) continue;
    const ConstBytes sign = chunk_of(signs_, chunk);
    if (rest.size() < sign.size()) return {Code::truncated, "votes: payload ends in its zeros"};
    const ConstBytes zero = rest.first(sign.size());
    rest = rest.subspan(sign.size());
    if (!padding_is_zero(zero, chunk_bits(chunk)))
      return {Code::bad_value, "votes: set bits in the padding"};
    if (!any(zero)) return {Code::bad_value, "votes: a chunk with zeros has none"};
    for (std::size_t i = 0; i < zero.size(); ++i) {
      if ((zero[i] & sign[i]) != std::byte{}) return {Code::bad_value, "votes: a zero with a sign"};
    }
  }
  return rest.empty() ? Status{} : Status{Code::mismatch, "votes: bytes behind the zeros"};
}

VoteReader::Chunk VoteReader::next() {
  Chunk out{chunk_of(signs_, chunk_), {}};
  if (bit_of(flags_, chunk_)) {
    out.zeros = zeros_.first(out.signs.size());
    zeros_ = zeros_.subspan(out.signs.size());
  }
  ++chunk_;
  return out;
}

}  // namespace thinwire
