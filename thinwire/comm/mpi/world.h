// world.h: what the collectives of one MPI group share: communicators, numbering, the failure, and
// the roll call that finds silent ranks. Internal to the MPI engine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "thinwire/comm/call.h"

namespace thinwire::mpi {

// A call and its number: what a rank is waiting for.
struct Position {
  Call call;
  std::uint64_t sequence = 0;
};

// What a rank tells the others when it gives up. Ranks run the same program on similar machines, so
// it is sent as raw bytes.
struct Statement {
  Position position;
  std::uint64_t issued = 0;  // collectives so far
  char reason[256] = {};     // what it knows to be wrong; empty after a plain timeout
};

class World {
 public:
  explicit World(const GroupOptions& options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm data() const { return data_; }
  MPI_Comm control() const { return control_; }
  const GroupOptions& options() const { return options_; }

  // Gives the call its number. Throws when the group has failed.
  Position issue(const Call& call);

  // A tag for the direct messages of one call.
  int tag(const Position& position) const;

  MPI_Op operation(DType dtype, ReduceOp op) const;

  bool failed() const { return !failure_.empty(); }
  void throw_if_failed() const;

  // A rank that has given up, or nobody (-1).
  int deserter() const;

  // Ends the group. Tells the others, collects their statements, and throws the Error that names
  // the ranks at fault. `how` completes "all_reduce #17 ...". `owing` are the ranks whose messages
  // have not arrived; it is empty when MPI does not say.
  [[noreturn]] void give_up(const Position& position, const std::string& how,
                            const std::vector<int>& owing = {});

  // Ends the group after ranks compared a call and found that it differs.
  [[noreturn]] void disagree(const Position& position);

  // Ends the group for a reason known to this rank. Tells the others, who are waiting for us.
  [[noreturn]] void refuse(const Position& position, const std::string& text);

  // Bytes counted by the group.
  Traffic traffic;

  // How long a roll call listens. Ranks that wait answer within milliseconds.
  std::chrono::milliseconds grace() const;

 private:
  using Answers = std::vector<std::optional<Statement>>;  // by rank

  void announce(const Position& position, const std::string& reason);
  Answers listen(std::chrono::milliseconds limit);
  std::string verdict(const Position& position, const std::string& how,
                      const std::vector<int>& owing, const Answers& answers) const;
  std::string blame(const Position& position, int rank, const Statement& statement) const;

  GroupOptions options_;
  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm control_ = MPI_COMM_NULL;  // agreement checks and roll calls
  int rank_ = 0;
  int size_ = 1;
  int tags_ = 0;  // number of available tags
  std::uint64_t issued_ = 0;
  std::string failure_;
  int exceptions_;
  std::vector<MPI_Op> operations_;
};

// Throws an Error with MPI's own text unless `code` is MPI_SUCCESS.
void check(int code, const char* what);
std::string text_of(int code);

// Keeps something alive for the rest of the process. MPI cannot cancel a collective in flight, so
// the memory that it points to must never be freed once we stop waiting.
void keep_for_ever(std::shared_ptr<void> thing);

}  // namespace thinwire::mpi
