// process.h: runs another program and waits for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace thinwire::apps {

struct Ending {
  int code = 0;              // exit code, unless a signal ended it
  int signal = 0;            // the signal that ended it, or 0
  bool interrupted = false;  // we got SIGINT, SIGTERM or SIGHUP while it ran

  bool good() const { return code == 0 && signal == 0 && !interrupted; }
  // "exit code 3", "signal 9 (Killed)"
  std::string str() const;
};

// Runs command[0], a path, with the other words as its arguments. The program shares our input and
// outputs. SIGINT, SIGTERM and SIGHUP are forwarded: the program ends in its own way, and only then
// does this function return. If we are killed, the program gets SIGTERM. Throws an Error if it
// cannot be started.
Ending run_program(const std::vector<std::string>& command);

// The path of the running program.
std::string this_program();

}  // namespace thinwire::apps
