// world.cc: set-up of an MPI group, and the diagnosis when a collective does not end.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/mpi/world.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "thinwire/comm/reduce.h"
#include "thinwire/core/error.h"

namespace thinwire::mpi {
namespace {

constexpr int kRollCall = 1;  // tag on the control communicator

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::i8, DType::i32};
constexpr ReduceOp kOperations[] = {ReduceOp::sum, ReduceOp::max};

// Our own arithmetic in place of MPI_SUM and MPI_MAX. reduce.h is commutative to the last
// bit, including NaNs and zeros, so ranks agree whatever tree the MPI library picks. Counts
// are in elements.
template <DType dtype, ReduceOp op>
void combine(void* from, void* into, int* count, MPI_Datatype*) {
  const std::size_t bytes = static_cast<std::size_t>(*count) * size_of(dtype);
  reduce_into({static_cast<std::byte*>(into), bytes}, {static_cast<std::byte*>(from), bytes}, dtype,
              op);
}

template <DType dtype>
void make_operations(std::vector<MPI_Op>& operations) {
  MPI_Op sum = MPI_OP_NULL, max = MPI_OP_NULL;
  check(MPI_Op_create(combine<dtype, ReduceOp::sum>, 1, &sum), "MPI_Op_create");
  check(MPI_Op_create(combine<dtype, ReduceOp::max>, 1, &max), "MPI_Op_create");
  operations.push_back(sum);
  operations.push_back(max);
}

MPI_Comm duplicate_world() {
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return comm;
}

void require_running() {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (!started || ended)
    fail("MPI group: MPI is not running; put an MpiSession at the top of main(), or use run_mpi");
}

std::string list_of(const std::vector<std::string>& items) {
  std::string text;
  for (const auto& item : items) text.append(text.empty() ? "" : ", ").append(item);
  return text;
}

std::string name_of_rank(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

World::World(const GroupOptions& options)
    : options_(options), exceptions_(std::uncaught_exceptions()) {
  require_running();
  if (options.piece_bytes < 4 || options.piece_bytes % 4 != 0 || options.piece_bytes > 0x7ffffffc)
    fail("MPI group: expected piece_bytes as a multiple of 4 below 2^31, got ",
         options.piece_bytes);
  data_ = duplicate_world();
  control_ = duplicate_world();
  MPI_Comm_rank(data_, &rank_);
  MPI_Comm_size(data_, &size_);
  int* bound = nullptr;
  int found = 0;
  MPI_Comm_get_attr(data_, MPI_TAG_UB, static_cast<void*>(&bound), &found);
  tags_ = found ? *bound : 32767;  // the least that the standard allows
  make_operations<DType::f32>(operations_);
  make_operations<DType::f16>(operations_);
  make_operations<DType::bf16>(operations_);
  make_operations<DType::i8>(operations_);
  make_operations<DType::i32>(operations_);
}

World::~World() {
  int ended = 0;
  MPI_Finalized(&ended);
  // Freeing is collective, so skip it when other ranks may be gone or messages are in flight.
  if (ended || failed() || std::uncaught_exceptions() > exceptions_) return;
  for (MPI_Op& operation : operations_) MPI_Op_free(&operation);
  MPI_Comm_free(&control_);
  MPI_Comm_free(&data_);
}

Position World::issue(const Call& call) {
  throw_if_failed();
  return {call, issued_++};
}

int World::tag(const Position& position) const {
  const auto slots = static_cast<std::uint64_t>(tags_ / 2);
  const int parity = position.call.kind == Kind::all_gather ? 0 : 1;
  return static_cast<int>(position.sequence % slots) * 2 + parity;
}

MPI_Op World::operation(DType dtype, ReduceOp op) const {
  const auto row = std::ranges::find(kTypes, dtype) - std::begin(kTypes);
  const auto column = std::ranges::find(kOperations, op) - std::begin(kOperations);
  return operations_[static_cast<std::size_t>(row * 2 + column)];
}

void World::throw_if_failed() const {
  if (failed()) throw Error(failure_);
}

std::chrono::milliseconds World::grace() const {
  using std::chrono::milliseconds;
  return std::clamp(options_.timeout / 4, milliseconds(1000), milliseconds(5000));
}

int World::deserter() const {
  int waiting = 0;
  MPI_Status status;
  const int code = MPI_Iprobe(MPI_ANY_SOURCE, kRollCall, control_, &waiting, &status);
  return code == MPI_SUCCESS && waiting ? status.MPI_SOURCE : -1;
}

void World::announce(const Position& position, const std::string& reason) {
  const auto statement = std::make_shared<Statement>();
  statement->position = position;
  statement->issued = issued_;
  reason.copy(statement->reason, sizeof statement->reason - 1);
  keep_for_ever(statement);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(statement.get(), sizeof(Statement), MPI_BYTE, r, kRollCall, control_, &request);
  }
}

World::Answers World::listen(std::chrono::milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  Answers answers(static_cast<std::size_t>(size_));
  const auto end = Clock::now() + limit;
  for (int heard = 1; heard < size_ && Clock::now() < end;) {
    const int from = deserter();
    if (from < 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    Statement& statement = answers[static_cast<std::size_t>(from)].emplace();
    if (MPI_Recv(&statement, sizeof statement, MPI_BYTE, from, kRollCall, control_,
                 MPI_STATUS_IGNORE) != MPI_SUCCESS)
      break;
    statement.reason[sizeof statement.reason - 1] = 0;
    ++heard;
  }
  return answers;
}

// What another rank's statement proves to be wrong; empty if it proves nothing.
std::string World::blame(const Position& position, int rank, const Statement& statement) const {
  const auto& [call, sequence] = statement.position;
  const std::string here = name_of_rank(rank_) + ": ";
  if (statement.reason[0])
    return here + label(position.call, position.sequence) + ": " + name_of_rank(rank) +
           " reports: " + statement.reason;
  if (sequence != position.sequence || call == position.call) return "";
  return here + (rank_ < rank ? mismatch_text(sequence, rank_, position.call, rank, call)
                              : mismatch_text(sequence, rank, call, rank_, position.call));
}

std::string World::verdict(const Position& position, const std::string& how,
                           const std::vector<int>& owing, const Answers& answers) const {
  std::vector<std::string> absent, elsewhere;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const auto& answer = answers[static_cast<std::size_t>(r)];
    if (!answer) {
      const bool delivered = !owing.empty() && std::ranges::find(owing, r) == owing.end();
      if (!delivered) absent.push_back(name_of_rank(r) + " (silent)");
      continue;
    }
    if (std::string text = blame(position, r, *answer); !text.empty()) return text;
    const auto& [call, sequence] = answer->position;
    const std::string place = name_of_rank(r) + " (in " + label(call, sequence) + ")";
    if (answer->issued <= position.sequence) absent.push_back(place);
    if (sequence != position.sequence) elsewhere.push_back(place);
  }
  const std::string start =
      name_of_rank(rank_) + ": " + label(position.call, position.sequence) + " " + how;
  if (!absent.empty())
    return start + " waiting for " + list_of(absent) +
           "; is it alive? Look at its log; if it is only slow, raise the time limit";
  if (!elsewhere.empty())
    return start + " while others are at " + list_of(elsewhere) +
           "; all ranks must issue the same collectives in the same order";
  return start + " although all ranks take part; if the network is only slow, raise the time limit";
}

void World::give_up(const Position& position, const std::string& how,
                    const std::vector<int>& owing) {
  announce(position, "");
  failure_ = verdict(position, how, owing, listen(grace()));
  throw Error(failure_);
}

void World::disagree(const Position& position) {
  announce(position, "");
  // All ranks took part in comparing the call, so all will answer, however busy the machine is.
  const auto limit = std::max(options_.timeout, std::chrono::milliseconds(30000));
  failure_ = verdict(position, "is not the same on all ranks", {}, listen(limit));
  throw Error(failure_);
}

void World::refuse(const Position& position, const std::string& text) {
  announce(position, text);
  failure_ = text;
  throw Error(failure_);
}

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<std::size_t>(length)};
}

void check(int code, const char* what) {
  if (code != MPI_SUCCESS) fail(what, ": ", text_of(code));
}

void keep_for_ever(std::shared_ptr<void> thing) {
  static std::mutex mutex;
  static auto* const things = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  things->push_back(std::move(thing));
}

}  // namespace thinwire::mpi
