// process.cc: fork, exec, wait.
// SPDX-License-Identifier: Apache-2.0
#include "apps/process.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "thinwire/core/error.h"

namespace thinwire::apps {
namespace {

constexpr int cannot_start = 127;  // as shells say it

volatile std::sig_atomic_t interrupts = 0;

// While the program runs, Ctrl-C is noted instead of ending us.
class Patience {
 public:
  Patience() {
    interrupts = 0;
    struct sigaction note = {};
    note.sa_handler = [](int) { interrupts = 1; };
    sigaction(SIGINT, &note, &before_);
  }
  ~Patience() { sigaction(SIGINT, &before_, nullptr); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  struct sigaction before_ = {};
};

// In the child; only calls that are safe after fork.
[[noreturn]] void become(char* const* words, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(cannot_start);  // it was gone before the line above
  execv(words[0], words);
  _exit(cannot_start);
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail("cannot wait for process ", child, ": ", std::strerror(errno));
  }
  return status;
}

}  // namespace

std::string Ending::str() const {
  if (interrupted) return "an interrupt";
  if (signal != 0) return "signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
  return "exit code " + std::to_string(code);
}

Ending run_program(const std::vector<std::string>& command) {
  if (access(command[0].c_str(), X_OK) != 0) {
    fail("cannot run '", command[0], "': ", std::strerror(errno));
  }
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const Patience patience;
  const pid_t parent = getpid(), child = fork();
  if (child < 0) fail("cannot start '", command[0], "': ", std::strerror(errno));
  if (child == 0) become(words.data(), parent);
  const int status = wait_for(child);
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
          .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
          .interrupted = interrupts != 0};
}

std::string this_program() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) fail("cannot read /proc/self/exe: ", std::strerror(errno));
  return {path.data(), static_cast<std::size_t>(length)};
}

}  // namespace thinwire::apps
