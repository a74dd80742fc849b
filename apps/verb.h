// verb.h: what the verbs of the command share. A verb is one file with an add_...() function that
// describes its flags and what to run, and one line in main.cc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/table.h"
#include "thinwire/core/options.h"

namespace thinwire::apps {

// The user's input cannot be used: a flag, a scheme, a file. Exit code 2. Any other exception is a
// failure of ours or of the machine, exit code 1.
class BadInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A signal ended the work early. The text says what was kept.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr int exit_failure = 1;
inline constexpr int exit_bad_input = 2;
inline constexpr int exit_interrupted = 130;

// Replaces this process by thinwire-torch if the verb needs it and it is installed.
// Returns otherwise.
void hand_over(char** argv);

// Each adds its verb to `parent`. The verb runs after the command line has been
// parsed without error.
void add_bench_kernels(CLI::App& parent);
void add_bench_wire(CLI::App& parent);
void add_bench_schemes(CLI::App& parent);
void add_bench_exchange(CLI::App& parent);
void add_bench_step(CLI::App& parent);
void add_compare(CLI::App& parent);
void add_inspect(CLI::App& parent);
void add_schemes(CLI::App& parent);
void add_train(CLI::App& parent);

// A verb with `--json F`, and an example below its help.
CLI::App* add_verb(CLI::App& parent, const std::string& name, const std::string& help,
                   const std::string& example, std::string& json);

// One or more numbers, each at least 1. Accepts both 1000000 and 1e6.
CLI::Option* add_counts(CLI::App& verb, const std::string& flag, std::vector<std::size_t>& counts,
                        const std::string& help);

// Checks everything, so that a bad scheme or option is found before the work starts.
// Throws BadInput.
Config parse_scheme(const std::string& text);

// "dense,dgc:density=0.01,values=sign,topk" as three schemes: a part with '=' but without ':' is a
// further option of the scheme before it.
std::vector<Config> parse_schemes(const std::string& text);

// The machine and the build, for the header of a table and for JSON.
Row about_machine();
void print_machine(const Row& about);

// Prints the table, then writes the rows when `json` names a file.
void report(const std::vector<Column>& columns, const Rows& rows, const std::string& json);

// Shows on a terminal what is being measured now. Silent in a pipe.
void progress(const std::string& text);

}  // namespace thinwire::apps
