// agreement.cc: compares a summary and a checksum of every rank with those of rank 0.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/agreement.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "thinwire/core/crc32c.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

constexpr std::size_t agreement_bytes = 1024;

// Everything that must be the same on every rank: a readable summary, and a checksum of all of it.
struct Agreement {
  std::string summary;
  std::uint32_t checksum = 0;
};

Agreement describe(const std::vector<Bucket>& buckets, const std::string& schemes) {
  std::string all = schemes;
  std::size_t elements = 0;
  for (const Bucket& bucket : buckets) {
    all += "\nbucket " + std::to_string(bucket.id) + " " + name_of(bucket.dtype);
    for (const Parameter& parameter : bucket.parameters) {
      all += "\n" + parameter.name + " " + std::to_string(parameter.count);
      for (const std::int64_t extent : parameter.shape) all += "x" + std::to_string(extent);
    }
    elements += bucket.elements();
  }
  std::string summary = std::to_string(buckets.size()) + " buckets, " + std::to_string(elements) +
                        " elements, scheme " + schemes;
  summary.resize(std::min(summary.size(), agreement_bytes - sizeof(std::uint32_t)));
  return {std::move(summary), crc32c(std::as_bytes(std::span(all)))};
}

}  // namespace

void check_same_steps(int rank, const std::string& what, std::span<const std::uint64_t> steps) {
  const auto differs = [&](std::uint64_t its) { return its != steps[0]; };
  const auto found = std::ranges::find_if(steps, differs);
  if (found == steps.end()) return;
  fail("rank ", rank, ": rank 0 begins at ", what, " ", steps[0], ", rank ", found - steps.begin(),
       " at ", what, " ", *found,
       "; load the checkpoint of one and the same step on all ranks, or on none");
}

// One small maximum, when all ranks agree. Only when they differ, a gather finds the rank.
void check_same_step(Group& group, const std::string& what, std::uint64_t step) {
  if (group.size() == 1) return;
  const auto low = static_cast<std::int32_t>(step & 0x7fffffff);
  const auto high = static_cast<std::int32_t>(step >> 31 & 0x7fffffff);
  std::int32_t most[] = {low, -low, high, -high};
  group.all_reduce(std::as_writable_bytes(std::span(most)), DType::i32, ReduceOp::max, {}).wait();
  if (most[0] == -most[1] && most[2] == -most[3]) return;
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::uint64_t> steps(ranks);
  std::vector<std::size_t> sizes(ranks);
  group
      .all_gather(std::as_bytes(std::span(&step, 1)), sizeof step,
                  std::as_writable_bytes(std::span(steps)), sizes, {})
      .wait();
  check_same_steps(group.rank(), what, steps);
}

void check_agreement(Group& group, const std::vector<Bucket>& buckets,
                     const std::string& settings) {
  const Agreement mine = describe(buckets, settings);
  std::vector<std::byte> message(sizeof mine.checksum + mine.summary.size());
  std::memcpy(message.data(), &mine.checksum, sizeof mine.checksum);
  std::memcpy(message.data() + sizeof mine.checksum, mine.summary.data(), mine.summary.size());
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::byte> slots(ranks * agreement_bytes);
  std::vector<std::size_t> sizes(ranks);
  group.all_gather(message, agreement_bytes, slots, sizes, {}).wait();
  const auto of_rank = [&](std::size_t rank) {
    return std::string(reinterpret_cast<const char*>(slots.data() + rank * agreement_bytes),
                       sizes[rank]);
  };
  const std::string first = of_rank(0);
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    const std::string other = of_rank(rank);
    if (other == first) continue;
    const std::string a = first.substr(sizeof mine.checksum),
                      b = other.substr(sizeof mine.checksum);
    fail("rank ", group.rank(), ": rank ", rank,
         " was set up otherwise than rank 0; rank 0 has: ", a, "; rank ", rank,
         " has: ", a == b ? "the same in sum, but other parameter names, sizes or types" : b,
         "; start all ranks with the same model and options");
  }
}

}  // namespace thinwire
