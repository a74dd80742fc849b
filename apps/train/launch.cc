// launch.cc: starts worker processes, watches for their end, and reports it.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/launch.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

#include "apps/verb.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// After a first death: time for the others to follow, so that the cause can be told from its
// effects. After SIGTERM: time to exit.
constexpr auto settling = 500ms;
constexpr auto grace = 2s;
constexpr std::size_t longest_tail = 4096;

// Where the workers meet. The socket listens from the start, and rank 0 inherits it. A port that
// was only looked up could belong to another program by the time rank 0 has started.
class Rendezvous {
 public:
  Rendezvous() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (listener_ < 0 || bind(listener_, generic, size) != 0 ||
        getsockname(listener_, generic, &size) != 0 || listen(listener_, SOMAXCONN) != 0)
      fail("cannot listen at 127.0.0.1 for the workers to meet: ", strerror(errno));
    port_ = ntohs(address.sin_port);
  }
  ~Rendezvous() { close(listener_); }
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int listener() const { return listener_; }
  std::uint16_t port() const { return port_; }

 private:
  const int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::uint16_t port_ = 0;
};

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string word; std::getline(file, word, '\0');) arguments.push_back(word);
  return arguments;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment(int rank, int workers, const Rendezvous& rendezvous,
                                     int report) {
  std::vector<std::string> all = {"RANK=" + std::to_string(rank),
                                  "WORLD_SIZE=" + std::to_string(workers),
                                  "LOCAL_RANK=" + std::to_string(rank),
                                  "LOCAL_WORLD_SIZE=" + std::to_string(workers),
                                  "MASTER_ADDR=127.0.0.1",
                                  "MASTER_PORT=" + std::to_string(rendezvous.port()),
                                  "THINWIRE_WORKER=" + std::to_string(report)};
  if (rank == 0) all.push_back("THINWIRE_LISTENER=" + std::to_string(rendezvous.listener()));
  // When a peer dies, libtorch prints long warnings; we report it in one sentence.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) all.emplace_back("TORCH_CPP_LOG_LEVEL=ERROR");
  const std::size_t ours = all.size();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const bool replaced =
        std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(ours),
                    [&](const std::string& one) { return one.starts_with(name); });
    if (!replaced) all.emplace_back(text);
  }
  return all;
}

struct Worker {
  pid_t pid = -1;
  int pipe = -1;     // its report; for ranks above 0 all that it prints
  std::string tail;  // the last part of that
  bool running = false, stopped = false;
  int status = 0;  // from waitpid(), once not running

  // True if it saved a checkpoint after a signal.
  bool stopped_early() const {
    return !running && WIFEXITED(status) && WEXITSTATUS(status) == apps::exit_interrupted;
  }
  bool failed() const { return !running && status != 0 && !stopped_early(); }
  bool signalled() const { return !running && WIFSIGNALED(status); }
};

class Job {
 public:
  Job(int workers, bool stops) : stops_(stops), workers_(static_cast<std::size_t>(workers)) {
    sigemptyset(&watched_);
    for (const int each : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&watched_, each);
    sigprocmask(SIG_BLOCK, &watched_, &before_);
    signals_ = signalfd(-1, &watched_, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_ < 0) fail("cannot watch for signals: ", strerror(errno));
    const Rendezvous rendezvous;
    for (std::size_t rank = 0; rank < workers_.size(); ++rank)
      start(static_cast<int>(rank), rendezvous);
  }

  ~Job() {
    end_all();
    close(signals_);
    for (const Worker& worker : workers_) close(worker.pipe);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Returns when all workers have ended normally.
  void watch() {
    while (any_running() && !any_failed()) wait(-1);
    if (!any_failed()) {
      if (workers_[0].stopped_early()) throw apps::Interrupted(last_words(workers_[0]));
      return;
    }
    const auto until = Clock::now() + settling;
    while (any_running() && Clock::now() < until) wait(50);
    const std::string stopped = stopped_ranks();
    end_all(/*keep_causes=*/true);
    complain(stopped);
  }

 private:
  void start(int rank, const Rendezvous& rendezvous) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail("cannot make a pipe: ", strerror(errno));
    std::vector<std::string> arguments = own_arguments();
    std::vector<std::string> variables =
        environment(rank, static_cast<int>(workers_.size()), rendezvous, ends[1]);
    const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) fail("cannot start worker ", rank, ": ", strerror(errno));
    if (pid == 0) become_worker(rank, parent, ends, rendezvous, argv, envp);
    close(ends[1]);
    Worker& worker = workers_[static_cast<std::size_t>(rank)];
    worker.pid = pid;
    worker.pipe = ends[0];
    worker.running = true;
  }

  // Runs in the child: only calls that are safe between fork and exec.
  [[noreturn]] void become_worker(int rank, pid_t parent, const int (&ends)[2],
                                  const Rendezvous& rendezvous, const std::vector<char*>& argv,
                                  const std::vector<char*>& envp) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    // Ctrl-C reaches the workers too, but the parent decides what follows. A worker that can stop
    // at a step unblocks it (stop.cc).
    sigset_t mask = before_;
    sigaddset(&mask, SIGINT);
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    fcntl(ends[1], F_SETFD, 0);
    if (rank == 0) {
      fcntl(rendezvous.listener(), F_SETFD, 0);
    } else {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
    }
    execve("/proc/self/exe", argv.data(), envp.data());
    _exit(127);
  }

  bool any_running() const {
    return std::any_of(workers_.begin(), workers_.end(), [](auto& w) { return w.running; });
  }
  bool any_failed() const {
    return std::any_of(workers_.begin(), workers_.end(), [](auto& w) { return w.failed(); });
  }

  // Waits for any event: output, the end of a worker, a signal to us.
  void wait(int milliseconds) {
    std::vector<pollfd> sources = {{signals_, POLLIN, 0}};
    for (const Worker& worker : workers_) {
      if (!worker.running) continue;
      sources.push_back({worker.pipe, POLLIN, 0});
    }
    poll(sources.data(), sources.size(), milliseconds);
    for (Worker& worker : workers_) read_some(worker, sources);
    read_signals();
    for (Worker& worker : workers_) reap(worker, WNOHANG | WUNTRACED | WCONTINUED);
  }

  static void read_some(Worker& worker, const std::vector<pollfd>& sources) {
    for (const pollfd& source : sources) {
      if (source.fd != worker.pipe || (source.revents & POLLIN) == 0) continue;
      std::array<char, 4096> bytes{};
      const ssize_t got = read(worker.pipe, bytes.data(), bytes.size());
      if (got > 0) worker.tail.append(bytes.data(), static_cast<std::size_t>(got));
    }
    if (worker.tail.size() > longest_tail) worker.tail.erase(0, worker.tail.size() - longest_tail);
  }

  void read_signals() {
    signalfd_siginfo info{};
    while (read(signals_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) continue;
      if (stops_ && !stopping_) {
        ask_to_stop();
        continue;
      }
      end_all();
      throw apps::Interrupted(
          stops_ ? "interrupted twice; all workers were ended at once, without a checkpoint"
                 : "interrupted; all workers were ended. With --save FILE, an interrupted training "
                   "can be resumed");
    }
  }

  void ask_to_stop() {
    stopping_ = true;
    apps::progress("");
    std::cerr
        << "thinwire: saving a checkpoint after this step; press Ctrl-C again to end at once\n";
    for (const Worker& worker : workers_) {
      if (worker.running) kill(worker.pid, SIGINT);
    }
  }

  static void reap(Worker& worker, int flags) {
    int status = 0;
    while (worker.running && waitpid(worker.pid, &status, flags) == worker.pid) {
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        worker.stopped = WIFSTOPPED(status);
        continue;
      }
      worker.running = false;
      worker.status = status;
      drain(worker);
    }
  }

  // Reads what the worker wrote before its end. Only its own end of the pipe was
  // open, so this terminates.
  static void drain(Worker& worker) {
    pollfd source = {worker.pipe, POLLIN, 0};
    const std::vector<pollfd> one = {{worker.pipe, POLLIN, POLLIN}};
    while (poll(&source, 1, 0) > 0 && (source.revents & POLLIN) != 0) read_some(worker, one);
  }

  // Sends SIGTERM, then SIGKILL to workers that do not exit. A stopped process reacts
  // only to SIGKILL.
  void end_all(bool keep_causes = false) {
    std::vector<Worker> causes = workers_;
    for (const Worker& worker : workers_) {
      if (worker.running) kill(worker.pid, worker.stopped ? SIGKILL : SIGTERM);
    }
    const auto until = Clock::now() + grace;
    while (any_running() && Clock::now() < until) {
      for (Worker& worker : workers_) reap(worker, WNOHANG);
      usleep(5000);
    }
    for (Worker& worker : workers_) {
      if (!worker.running) continue;
      kill(worker.pid, SIGKILL);
      reap(worker, 0);
    }
    if (!keep_causes) return;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (causes[i].running) workers_[i].status = 0;  // a signal from us is not a cause
    }
  }

  std::string stopped_ranks() const {
    std::string text;
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      if (workers_[rank].running && workers_[rank].stopped)
        text += (text.empty() ? "" : ", ") + std::to_string(rank);
    }
    return text;
  }

  // The worker whose end explains most: one killed by a signal, otherwise one with bad input,
  // otherwise any. The others usually report only that this one is gone.
  std::size_t culprit() const {
    const auto weight = [](const Worker& worker) {
      if (worker.signalled()) return 3;
      if (!worker.failed()) return 0;
      return WEXITSTATUS(worker.status) == apps::exit_bad_input ? 2 : 1;
    };
    const auto found =
        std::max_element(workers_.begin(), workers_.end(),
                         [&](const Worker& a, const Worker& b) { return weight(a) < weight(b); });
    return static_cast<std::size_t>(found - workers_.begin());
  }

  static std::string last_words(const Worker& worker) {
    return worker.tail.substr(0, worker.tail.find_last_not_of('\n') + 1);
  }

  [[noreturn]] void complain(const std::string& stopped) const {
    const std::size_t rank = culprit();
    const Worker& worker = workers_[rank];
    std::string text = last_words(worker);
    const std::string hint =
        stopped.empty() ? "" : "; rank " + stopped + " is stopped (SIGSTOP), not gone";
    if (worker.signalled()) {
      const int signal = WTERMSIG(worker.status);
      fail("rank ", rank, " was killed by signal ", signal, " (", strsignal(signal), ")",
           signal == SIGKILL ? ", by hand or for lack of memory" : "",
           "; the other workers were ended", text.empty() ? "" : ". It last said: ", text);
    }
    const int code = WEXITSTATUS(worker.status);
    if (code == apps::exit_bad_input && !text.empty()) throw apps::BadInput(text);
    if (text.empty())
      text = "rank " + std::to_string(rank) + " ended with code " + std::to_string(code);
    throw Error(text + hint + "; all workers were ended");
  }

  const bool stops_;
  bool stopping_ = false;
  std::vector<Worker> workers_;
  sigset_t watched_{}, before_{};
  int signals_ = -1;
};

}  // namespace

void launch(int workers, bool stops) {
  std::cout << std::flush;
  Job job(workers, stops);
  job.watch();
}

void tell(const Place& place, const std::string& text, int code) {
  std::cout << std::flush;
  const int to = place.report >= 0 ? place.report : STDERR_FILENO;
  apps::progress("");
  std::string line = place.report >= 0 ? "" : "thinwire: ";
  const std::string rank = "rank " + std::to_string(place.rank) + ": ";
  if (code == apps::exit_failure && place.world > 1 && !text.starts_with(rank)) line += rank;
  line += text + "\n";
  const char* from = line.data();
  for (std::size_t left = line.size(); left > 0;) {
    const ssize_t wrote = write(to, from, left);
    if (wrote <= 0) break;
    from += wrote;
    left -= static_cast<std::size_t>(wrote);
  }
}

void leave(const Place& place, const std::string& text, int code) {
  std::cout << std::flush;
  if (!text.empty()) tell(place, text, code);
  std::_Exit(code);
}

}  // namespace thinwire::train
