// participant.h: what one rank does in a step of an exchange: it encodes its buckets, decodes what
// arrives, finds out whether the step is void, and takes it back. An Exchange has one on a thread
// of its own; a VirtualExchange has those of all ranks, in lock-step. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "thinwire/exchange/carrier.h"
#include "thinwire/exchange/course.h"
#include "thinwire/exchange/lane.h"
#include "thinwire/exchange/setup.h"
#include "thinwire/exchange/tally.h"

namespace thinwire {

class Participant final : private Stations {
 public:
  struct Role {
    int rank = 0;
    int ranks = 1;
    bool server = false;  // it has no gradients
    bool ahead = true;    // see Course
  };

  Participant(const Role& role, std::vector<Bucket> buckets, Compressors compressors,
              std::unique_ptr<Carrier> carrier, std::size_t fuse_bytes);

  int rank() const { return role_.rank; }
  Lanes& lanes() { return lanes_; }
  const Lanes& lanes() const { return lanes_; }
  Course& course() { return course_; }
  Tally& tally() { return tally_; }
  const Tally& tally() const { return tally_; }

  // `first` sees the same bytes and decodes earlier: this rank decodes only what its own memory
  // learns from, and nobody reads its averages.
  void follow(const Participant& first) { first_ = &first; }

  // A step: begin(), the course, end(). With lanes().needs_norm() all gradients must be there at
  // its begin. end() takes a void step back; it does not count lanes().step.
  void begin();
  // Whether decoding has found that the step does not take place. An error where this rank's own
  // gradient should have told so.
  bool found_void() const;
  StepResult end();

  // Gives the step up after an error: every memory gets back what it sent. It returns failures as
  // text and never throws, because it runs while an error is being handled.
  std::string give_up();
  // Taking a step back has failed: the memory must not be saved.
  bool damaged() const { return damaged_; }

 private:
  Written encode(Lane& lane, int round, Bytes out) override;
  bool decode(Lane& lane, int round, const Inbox& inbox) override;
  void wait(Pending& pending) override;
  void arrived(const Lane& lane, Tally::Time issued) override;

  Turn turn(const Lane& lane, int round) const;
  double norm_of_all() const;
  void look_at(const Lane& lane);
  Status read(Lane& lane, int round, const Inbox& inbox);
  void void_step();
  std::string take_back();

  const Role role_;
  OwnStream stream_;  // of the CPU: everything is done at once
  std::unique_ptr<Carrier> carrier_;
  Lanes lanes_;
  Course course_;
  Tally tally_;
  const Participant* first_ = nullptr;
  bool remembers_ = false;     // some scheme has a memory
  double squared_norm_ = 0;    // of this step
  bool sound_ = true;          // so far, this rank's gradients of the step are within the limit
  bool skipped_ = false;       // so far
  std::vector<bool> refused_;  // by bucket: decoding has found that the step is skipped
  bool damaged_ = false;
};

}  // namespace thinwire
