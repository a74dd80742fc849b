// participant.cc: the stations of a bucket on the CPU, and the end of a step.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/participant.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {

Participant::Participant(const Role& role, std::vector<Bucket> buckets, Compressors compressors,
                         std::unique_ptr<Carrier> carrier, std::size_t fuse_bytes)
    : role_(role),
      stream_(Device{}),
      carrier_(std::move(carrier)),
      lanes_(role.rank, std::move(buckets), shared(std::move(compressors)), stream_),
      course_(lanes_, *this, *carrier_, stream_, role.ranks, Fuser(fuse_bytes, stream_),
              role.ahead),
      tally_([this] { return carrier_->traffic(); }),
      refused_(lanes_.size()) {
  for (const Lane& lane : lanes_) remembers_ = remembers_ || lane.compressor->sound().has_value();
}

void Participant::begin() {
  squared_norm_ = lanes_.needs_norm() ? norm_of_all() : 0;
  skipped_ = false;
  sound_ = true;
  refused_.assign(lanes_.size(), false);
}

double Participant::norm_of_all() const {
  double sum = 0;
  for (const Lane& lane : lanes_) {
    require_gradient(lane.gradient, lane.bucket, {}, lanes_.where(lane.bucket.id));
    sum += squared_norm(lane.gradient.dtype, lane.gradient.data, lane.gradient.count);
  }
  return sum;
}

Turn Participant::turn(const Lane& lane, int round) const {
  Turn turn{lanes_.step, round, lane.stream, squared_norm_};
  turn.wanted = !first_ || !lane.is_last(round);
  return turn;
}

Written Participant::encode(Lane& lane, int round, Bytes out) {
  const Tally::Time start = Tally::now();
  if (round == 0) look_at(lane);
  const std::size_t bytes = lane.compressor->encode(turn(lane, round), lane.gradient, out);
  lane.encoded = true;  // only after encode(): if it throws, there is nothing to undo
  if (round == 0) sound_ = sound_ && lane.compressor->sound().value_or(true);
  tally_.stage("encode", lane.bucket.id, lanes_.step, start, &Report::encode_seconds);
  tally_.count([&](Report& report) {
    report.payload_bytes += bytes;
    if (round == 0 && !role_.server) report.dense_bytes += lane.gradient.count * sizeof(float);
  });
  return {bytes, lane.compressor->piece_sizes()};
}

// A scheme without memory does not check its gradient, but the memories of other buckets must
// know.
void Participant::look_at(const Lane& lane) {
  if (role_.server || !remembers_ || lane.compressor->sound().has_value()) return;
  const TensorView& it = lane.gradient;
  sound_ = sound_ && std::isfinite(squared_norm(it.dtype, it.data, it.count));
}

void Participant::wait(Pending& pending) {
  const Tally::Time start = Tally::now();
  pending.wait();
  const double seconds = std::chrono::duration<double>(Tally::now() - start).count();
  tally_.count([&](Report& report) { report.wait_seconds += seconds; });
}

void Participant::arrived(const Lane& lane, Tally::Time issued) {
  tally_.stage("exchange", lane.bucket.id, lanes_.step, issued);
}

// All ranks see the same, so they all leave out the further rounds of a skipped step.
bool Participant::decode(Lane& lane, int round, const Inbox& inbox) {
  Status status;
  if (!first_ || lane.compressor->learns(round)) status = read(lane, round, inbox);
  if (!status.ok() && status.code != Code::skipped)
    throw Error(round_fault(lanes_.where(lane.bucket.id), inbox.culprit, status.what));
  const std::size_t bucket = lane.bucket.id;
  refused_[bucket] = !status.ok() || (first_ && first_->refused_[bucket]);
  skipped_ = skipped_ || refused_[bucket];
  return !refused_[bucket];
}

// Where this rank's gradient was beyond the limit, the step will be skipped: frames are still
// checked, but the gradient is kept for forget().
Status Participant::read(Lane& lane, int round, const Inbox& inbox) {
  TensorView average = lane.gradient;
  std::vector<std::byte> spare;
  if (!sound_ && lane.is_last(round) && !lane.compressor->leg(lanes_.step, round).in_place) {
    spare.resize(average.count * size_of(average.dtype));
    average.data = spare.data();
  }
  const Tally::Time start = Tally::now();
  const Status status = lane.compressor->decode(turn(lane, round), inbox, average);
  tally_.stage("decode", lane.bucket.id, lanes_.step, start, &Report::decode_seconds);
  return status;
}

bool Participant::found_void() const {
  if (!sound_ && !skipped_) fail(lanes_.where(0), untold);
  return skipped_;
}

StepResult Participant::end() {
  if (found_void()) void_step();
  for (Lane& lane : lanes_) lane.encoded = false;
  tally_.count([this](Report& report) {
    ++report.steps;
    report.skipped += skipped_ ? 1 : 0;
  });
  return {lanes_.step, skipped_};
}

void Participant::void_step() {
  if (const std::string failures = take_back(); !failures.empty())
    throw Error(failures + not_taken);
  for (const Lane& lane : lanes_) {
    const std::size_t bytes = lane.gradient.count * size_of(lane.gradient.dtype);
    std::fill_n(static_cast<std::byte*>(lane.gradient.data), bytes, std::byte{0});
  }
}

std::string Participant::give_up() {
  course_.abandon();
  return take_back();
}

// Takes the step back: every memory gets back what it sent. Where this rank's own gradient was
// beyond the limit, no memory keeps anything of it.
std::string Participant::take_back() {
  std::string failures;
  for (Lane& lane : lanes_) {
    if (!std::exchange(lane.encoded, false)) continue;
    try {
      const Turn turn{lanes_.step, 0, lane.stream, 0};
      if (sound_) lane.compressor->undo(turn);
      if (!sound_) lane.compressor->forget(turn, lane.gradient);
    } catch (const std::exception& error) {
      failures += text_of(failures.empty() ? "" : "; ", lanes_.where(lane.bucket.id),
                          ": what was sent could not be put back: ", error.what());
    }
  }
  damaged_ = damaged_ || !failures.empty();
  return failures;
}

}  // namespace thinwire
