// index.cc: bounds of the index coders, the choice between them, and dispatch by id.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/index.h"

#include "thinwire/wire/bits.h"
#include "thinwire/wire/elias_fano.h"
#include "thinwire/wire/gap.h"
#include "thinwire/wire/golomb.h"

namespace thinwire {
namespace {

IndexCode plan_golomb(std::span<const std::uint32_t> indices, std::uint32_t extent) {
  const GolombPlan plan = golomb_plan(indices, extent);
  return {IndexCoder::golomb, plan.parameter, static_cast<std::size_t>((plan.bits + 7) / 8)};
}

IndexCode plan_elias_fano(std::span<const std::uint32_t> indices) {
  const EliasFanoPlan plan = elias_fano_plan(indices.size(), indices.back());
  return {IndexCoder::elias_fano, plan.low, static_cast<std::size_t>(plan.bytes)};
}

// The best of the coders whose size is known beforehand.
IndexCode plan(std::span<const std::uint32_t> indices, std::uint32_t extent, IndexChoice choice) {
  if (choice == IndexChoice::elias_fano) return plan_elias_fano(indices);
  const IndexCode golomb = plan_golomb(indices, extent);
  if (choice != IndexChoice::smallest) return golomb;
  const IndexCode elias_fano = plan_elias_fano(indices);
  return elias_fano.bytes < golomb.bytes ? elias_fano : golomb;
}

}  // namespace

// Elias-Fano with mean_gap_log2() low bits; the Rice code with the same number of low bits is no
// longer.
std::size_t index_bound(std::size_t count, std::uint32_t extent) {
  if (count == 0 || extent == 0) return 0;
  const std::uint64_t n = count;
  const unsigned low = mean_gap_log2(n, extent);
  return static_cast<std::size_t>((n * low + 7) / 8 + (n + ((extent - 1) >> low) + 7) / 8);
}

IndexCode index_encode(std::span<const std::uint32_t> indices, std::uint32_t extent,
                       IndexChoice choice, Bytes out) {
  const IndexCode best = plan(indices, extent, choice);
  if (choice == IndexChoice::gap || choice == IndexChoice::smallest) {
    // The size of the adaptive code is only known after writing it; it must be below the others.
    const std::size_t bytes = gap_encode(indices, extent, out.first(best.bytes - 1));
    if (bytes > 0) return {IndexCoder::gap, 0, bytes};
  }
  if (best.coder == IndexCoder::golomb) {
    golomb_encode(indices, best.parameter, out.first(best.bytes));
  } else {
    elias_fano_encode(indices, best.parameter, out.first(best.bytes));
  }
  return best;
}

Status index_decode(const IndexCode& code, ConstBytes bytes, std::uint32_t extent,
                    std::span<std::uint32_t> out) {
  if (bytes.size() != code.bytes) return {Code::mismatch, "indices: not the length announced"};
  if (out.empty() || out.size() > extent)
    return {Code::bad_value, "indices: none, or more than the chunk has elements"};
  switch (code.coder) {
    case IndexCoder::golomb:
      return golomb_decode(code.parameter, bytes, extent, out);
    case IndexCoder::elias_fano:
      return elias_fano_decode(code.parameter, bytes, extent, out);
    case IndexCoder::gap:
      return gap_decode(code.parameter, bytes, extent, out);
  }
  return {Code::bad_value, "indices: unknown coder"};
}

}  // namespace thinwire
