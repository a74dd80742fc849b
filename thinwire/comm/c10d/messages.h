// messages.h: the messages of one collective between this rank and the others. Internal to the
// engine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "thinwire/comm/c10d/world.h"

namespace thinwire::torch_engine {

// Messages of one collective. They are waited for in the order in which they were posted. Both
// sides know when a message is empty, so it is not sent.
class Messages {
 public:
  Messages(World& world, const Job& job) : world_(world), job_(job) {}

  void send(ConstBytes from, int peer) {
    all_.push_back({from.empty() ? World::Message() : world_.send(from, peer, job_), peer});
  }
  void receive(Bytes to, int peer) {
    all_.push_back({to.empty() ? World::Message() : world_.receive(to, peer, job_), peer});
  }
  void wait_next() {
    const auto& [message, peer] = all_[next_++];
    if (message) world_.wait(message, peer);
  }
  void wait_all() {
    while (next_ < all_.size()) wait_next();
  }

 private:
  World& world_;
  const Job& job_;
  std::vector<std::pair<World::Message, int>> all_;
  std::size_t next_ = 0;
};

// Visits the other ranks, starting after our own, so that not all ranks send to rank 0 first.
template <typename Body>
void for_others(const World& world, Body body) {
  for (int step = 1; step < world.size(); ++step) body((world.rank() + step) % world.size());
}

// The position of a rank in that order, from 0.
inline std::size_t place_of(const World& world, int peer) {
  return static_cast<std::size_t>((peer - world.rank() + world.size()) % world.size() - 1);
}

}  // namespace thinwire::torch_engine
