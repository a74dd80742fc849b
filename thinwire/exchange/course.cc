// course.cc: flights, arrivals and parcels of a step.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/course.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace thinwire {
namespace {

// Collectives in flight at once. Two keep the link busy while a third bucket is encoded; more would
// only need more memory.
constexpr std::size_t depth = 2;

}  // namespace

Course::Course(Lanes& lanes, Stations& stations, Carrier& carrier, const OwnStream& stream,
               int ranks, Fuser fuser, bool ahead)
    : lanes_(lanes),
      stations_(stations),
      carrier_(carrier),
      stream_(stream),
      ranks_(ranks),
      fuser_(std::move(fuser)),
      ahead_(ahead) {}

void Course::launch(std::size_t lane) {
  send(lane, 0);
  if (ahead_) keep_up();
}

void Course::keep_up() {
  if (flights_.size() <= depth) return;
  const Flight& oldest = flights_.front();
  if (carrier_.waits() || !lanes_[oldest.lane].is_last(oldest.round)) return advance();
  // Nothing follows from it, so the stream need not wait for it before the next bucket is encoded.
  late_.push_back(std::move(flights_.front()));
  flights_.pop_front();
}

void Course::complete() {
  std::ranges::move(flights_, std::back_inserter(late_));
  flights_ = std::exchange(late_, {});
  // Decoding starts no collective, so it can overlap with the last ones.
  for (flush(); !flights_.empty() || !arrivals_.empty(); flush()) {
    if (arrivals_.empty() || !may_wait()) {
      advance();
      continue;
    }
    const Arrival arrival = arrivals_.front();
    arrivals_.pop_front();
    stations_.decode(lanes_[arrival.lane], arrival.round, arrival.inbox);
  }
  for (Parcel* parcel : std::exchange(unpacked_, {})) fuser_.release(parcel);
}

bool Course::proceed() {
  flush();
  for (; !flights_.empty() && flights_.front().pending.done(); flush()) advance();
  if (!flights_.empty()) return false;
  complete();
  return true;
}

bool Course::take_one() {
  if (flights_.empty()) return false;
  advance();
  flush();
  return !flights_.empty();
}

void Course::abandon() {
  late_.clear();
  flights_.clear();
  arrivals_.clear();
}

// Encodes a round of a bucket, and starts its collective or adds it to a parcel.
void Course::send(std::size_t index, int round) {
  Lane& lane = lanes_[index];
  Passage& passage = lane.passages[static_cast<std::size_t>(round)];
  const Leg leg = lane.compressor->leg(lanes_.step, round);
  const Bytes out = passage.begin(leg, ranks_, lane.gradient.data);
  const Written written = stations_.encode(lane, round, out);
  if (fuser_.takes(leg)) {
    if (Parcel* full = fuser_.add(index, round, leg, out)) depart(full);
    return;
  }
  const Tally::Time issued = Tally::now();
  flights_.push_back({index, round, carrier_.send(passage, written, lane.stream), issued});
}

void Course::depart(Parcel* parcel) {
  parcel->pack(stream_, ranks_);
  const std::size_t first = parcel->riders.front().lane;
  const Tally::Time issued = Tally::now();
  Pending pending = carrier_.send(parcel->passage, {parcel->leg.bytes}, lanes_[first].stream);
  flights_.push_back({first, parcel->round, std::move(pending), issued, parcel});
}

// All first rounds are encoded: sends parcels that no other bucket can join.
void Course::flush() {
  for (int round = fuser_.lowest_open(); round >= 0; round = fuser_.lowest_open()) {
    const auto earlier = [&](const Flight& flight) { return flight.round < round; };
    if (std::any_of(flights_.begin(), flights_.end(), earlier)) return;
    depart(fuser_.close(round));
  }
}

// Whether the oldest collective can wait: it is a last round, or it has not arrived yet.
bool Course::may_wait() {
  if (flights_.empty()) return true;
  Flight& oldest = flights_.front();
  return lanes_[oldest.lane].is_last(oldest.round) || !oldest.pending.done();
}

// Completes the oldest collective. A bucket with further rounds goes to the back of the queue.
void Course::advance() {
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  stations_.wait(flight.pending);
  if (!flight.parcel) {
    const Lane& lane = lanes_[flight.lane];
    stations_.arrived(lane, flight.issued);
    arrive(
        {flight.lane, flight.round, lane.passages[static_cast<std::size_t>(flight.round)].inbox()});
    return;
  }
  for (const Parcel::Rider& rider : flight.parcel->riders) {
    stations_.arrived(lanes_[rider.lane], flight.issued);
    arrive({rider.lane, flight.round, flight.parcel->unpack(stream_, rider)});
  }
  unpacked_.push_back(flight.parcel);
}

// Last rounds wait until all buckets are encoded. Other rounds are decoded at once, and the next
// round is sent.
void Course::arrive(const Arrival& arrival) {
  Lane& lane = lanes_[arrival.lane];
  if (lane.is_last(arrival.round)) {
    arrivals_.push_back(arrival);
  } else if (stations_.decode(lane, arrival.round, arrival.inbox)) {
    send(arrival.lane, arrival.round + 1);
  }
}

}  // namespace thinwire
