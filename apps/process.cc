// process.cc: fork, exec, wait.
// SPDX-License-Identifier: Apache-2.0
#include "apps/process.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "thinwire/core/error.h"

namespace thinwire::apps {
namespace {

constexpr int cannot_start = 127;  // the exit code that shells use

constexpr std::array passed_on = {SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t interrupted = 0;
std::atomic<pid_t> running = 0;
static_assert(std::atomic<pid_t>::is_always_lock_free, "the handler of a signal reads it");

void pass_on(int signal) {
  interrupted = 1;
  if (running > 0) kill(running, signal);
}

// While the program runs, signals go to it instead of ending us. Ctrl-C in a terminal reaches it
// twice, which it must tolerate.
class Patience {
 public:
  Patience() {
    interrupted = 0;
    sigset_t set;
    sigemptyset(&set);
    for (const int each : passed_on) sigaddset(&set, each);
    sigprocmask(SIG_BLOCK, &set, &unblocked_);  // until there is a process to forward them to
    struct sigaction action = {};
    action.sa_handler = pass_on;
    for (std::size_t i = 0; i < passed_on.size(); ++i)
      sigaction(passed_on[i], &action, &before_[i]);
  }
  ~Patience() { end(); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

  void begin(pid_t child) {
    running = child;
    sigprocmask(SIG_SETMASK, &unblocked_, nullptr);
  }

  // Also called in the child, before exec.
  void end() {
    running = 0;
    for (std::size_t i = 0; i < passed_on.size(); ++i)
      sigaction(passed_on[i], &before_[i], nullptr);
    sigprocmask(SIG_SETMASK, &unblocked_, nullptr);
  }

 private:
  sigset_t unblocked_ = {};
  std::array<struct sigaction, passed_on.size()> before_ = {};
};

// Runs in the child, so it makes only calls that are safe after fork.
[[noreturn]] void become(char* const* words, pid_t parent, Patience& patience) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);              // sent when the parent is killed
  if (getppid() != parent) _exit(cannot_start);  // the parent was gone before the line above
  patience.end();
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
  Patience patience;
  const pid_t parent = getpid(), child = fork();
  if (child < 0) fail("cannot start '", command[0], "': ", std::strerror(errno));
  if (child == 0) become(words.data(), parent, patience);
  patience.begin(child);
  const int status = wait_for(child);
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0,
          .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
          .interrupted = interrupted != 0};
}

std::string this_program() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) fail("cannot read /proc/self/exe: ", std::strerror(errno));
  return {path.data(), static_cast<std::size_t>(length)};
}

}  // namespace thinwire::apps
