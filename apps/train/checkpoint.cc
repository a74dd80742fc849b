// checkpoint.cc: writes and reads a worker's state files.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/checkpoint.h"

#include <filesystem>

#include "apps/verb.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

// A state maps names to numbers, so texts are stored in the names: "settings/model=mlp".
std::string prefix_of(const std::string& flag) { return "settings/" + flag + "="; }

std::string saved_value(const State& state, const std::string& prefix) {
  const auto found = state.lower_bound(prefix);
  if (found == state.end() || !found->first.starts_with(prefix)) return "";
  return found->first.substr(prefix.size());
}

std::string next_file(const std::string& path, int rank) {
  return checkpoint_file(path, rank) + ".next";
}

// Checkpoints from older versions do not have this entry.
void check_rank(const State& state, const std::string& file, int rank) {
  const std::string saved = saved_value(state, prefix_of("rank"));
  if (saved.empty() || saved == std::to_string(rank)) return;
  throw apps::BadInput("--resume: '" + file + "' is the checkpoint of rank " + saved +
                       ", expected that of rank " + std::to_string(rank) +
                       "; give every rank the file that it saved");
}

void compare(const State& state, const std::string& file, const Identity& identity) {
  for (const auto& [flag, mine] : identity) {
    const std::string saved = saved_value(state, prefix_of(flag));
    if (saved == mine) continue;
    throw apps::BadInput("--resume: '" + file + "' was saved with --" + flag + " " +
                         (saved.empty() ? "unknown" : saved) + ", this run has " + mine +
                         "; give the same value, or start a new run");
  }
}

}  // namespace

std::string checkpoint_file(const std::string& path, int rank) {
  return path + ".rank" + std::to_string(rank);
}

void write_checkpoint(const std::string& path, int rank, State state, const Identity& identity) {
  for (const auto& [flag, value] : identity) {
    state[prefix_of(flag) + value] = {Share::replicated, {}, 1, false};
  }
  state[prefix_of("rank") + std::to_string(rank)] = {Share::local, {}, 1, false};
  save_file(next_file(path, rank), state);
}

void publish_checkpoint(Group& group, const std::string& path, const Crew& crew) {
  group.barrier().wait();
  for (int rank = crew.begin; rank < crew.end; ++rank) {
    const std::string file = checkpoint_file(path, rank), next = next_file(path, rank);
    std::error_code error;
    std::filesystem::rename(next, file, error);
    if (error) fail("cannot rename '", next, "' to '", file, "': ", error.message());
  }
}

State load_checkpoint(const std::string& path, int rank, const Identity& identity) {
  // A run with more workers has ranks without a file. Rank 0's file tells them how many there were.
  const std::string own = checkpoint_file(path, rank);
  std::string file = own;
  if (!std::filesystem::exists(file)) file = checkpoint_file(path, 0);
  if (!std::filesystem::exists(file)) {
    throw apps::BadInput("--resume: there is no file '" + file + "'; expected FILE of `--save " +
                         "FILE`, without .rankR");
  }
  try {
    State state = load_file(file);
    compare(state, file, identity);
    if (file != own) fail("there is no '", own, "'; is the checkpoint complete?");
    check_rank(state, file, rank);
    return state;
  } catch (const Error& error) {
    throw apps::BadInput(std::string("--resume: ") + error.what());
  }
}

}  // namespace thinwire::train
