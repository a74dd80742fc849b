// receipt.cc: one small copy per step, and the wait for it.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/receipt.h"

#include "thinwire/core/poll.h"

namespace thinwire {

Receipt::Receipt(const OwnStream& stream, const Lanes& lanes, int ranks)
    : stream_(stream), closed_(stream.device()) {
  for (const Lane& lane : lanes) {
    std::vector<std::size_t>& first = first_.emplace_back();
    for (int round = 0; round < lane.compressor->rounds(); ++round) {
      first.push_back(count_);
      const bool pieces = lane.compressor->leg(0, round).reduction == Reduction::scatter;
      count_ += pieces ? static_cast<std::size_t>(ranks) : 1;
    }
  }
  const std::size_t bytes = sizeof(Verdict) + count_ * sizeof(std::uint64_t);
  board_ = Buffer(place_on(stream.device()), bytes, stream.device());
  copy_ = Buffer(place_beside(stream.device()), bytes, stream.device());
}

void Receipt::clear() const { stream_.zero(board_.data(), board_.size()); }

void Receipt::close(Stream stream) {
  stream_.copy(copy_.data(), board_.data(), board_.size());
  closed_.record(stream_.get());
  if (stream.handle != stream_.get().handle) closed_.hold_back(stream);
}

bool Receipt::await(std::chrono::milliseconds limit) const {
  return poll([this] { return closed_.done(); }, limit);
}

Verdict Receipt::found() const { return *copy_.as<const Verdict>(); }

std::uint64_t Receipt::bytes() const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count_; ++i) sum += lengths(copy_)[i];
  return sum;
}

void Receipt::raise() const {
  stream_.copy(copy_.data(), board_.data(), sizeof(Verdict));
  stream_.wait();
  copy_.as<Verdict>()->skipped = 1;
  stream_.copy(board_.data(), copy_.data(), sizeof(Verdict));
}

const char* explain(Code code) {
  switch (code) {
    case Code::truncated:
      return "the message ends too early";
    case Code::bad_magic:
      return "not a thinwire frame";
    case Code::bad_version:
      return "written by another version of the frame format";
    case Code::bad_checksum:
      return "frame's checksum differs: damaged on the way";
    case Code::bad_value:
      return "a field of the frame is out of range";
    case Code::mismatch:
      return "the frame is of another step, bucket, scheme or size than expected";
    case Code::ok:
    case Code::skipped:
      break;
  }
  return "an unknown fault";
}

}  // namespace thinwire
