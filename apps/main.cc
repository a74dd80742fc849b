// main.cc: the thinwire command: reads the command line, runs a verb, turns errors into sentences.
// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <iostream>

#include "apps/verb.h"

namespace {

using namespace thinwire::apps;

void add_verbs(CLI::App& command) {
  CLI::App* bench = command.add_subcommand(
      "bench", "Measure this machine: every row with its floor and the ratio to it");
  bench->require_subcommand(1);
  add_bench_kernels(*bench);
  add_bench_wire(*bench);
  add_bench_schemes(*bench);
  add_bench_exchange(*bench);
  add_bench_step(*bench);
  add_train(command);
  add_compare(command);
  add_inspect(command);
  add_schemes(command);
}

int complain(const char* text, int code) {
  progress("");
  std::cerr << "thinwire: " << text << '\n';
  return code;
}

// CLI11 asks for a verb without naming the word that it could not take for one.
std::string sentence(const CLI::App& command, const CLI::ParseError& error) {
  std::string text = error.what();
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError)) {
    for (const std::string& word : command.remaining(true)) text += ", got '" + word + "'";
  }
  return text + "; see thinwire --help";
}

int run(int argc, char** argv) {
  CLI::App command("thinwire: train over thin wires. Compresses gradients, measures what it costs.",
                   "thinwire");
  command.set_version_flag("--version", "thinwire " THINWIRE_VERSION);
  command.require_subcommand(1);
  command.footer(
      "Examples:\n"
      "  thinwire train --model mlp --data digits --workers 4 --scheme dgc:warmup=100\n"
      "  thinwire schemes\n"
      "  thinwire bench kernels --elements 1e7 --threads 1,2\n"
      "  thinwire bench exchange --schemes dense,dgc --link 100mbit,1ms\n"
      "  thinwire compare --preset dgc-ablation --workers 4 --link 100mbit,1ms\n"
      "  thinwire inspect --example frame.tw && thinwire inspect frame.tw\n"
      "\n`thinwire VERB --help` says more about each.\n");
  add_verbs(command);
  try {
    command.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return command.exit(request);
  } catch (const CLI::ParseError& error) {
    return complain(sentence(command, error).c_str(), exit_bad_input);
  }
  progress("");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    hand_over(argv);
    return run(argc, argv);
  } catch (const BadInput& error) {
    return complain(error.what(), exit_bad_input);
  } catch (const std::bad_alloc&) {
    return complain("not enough memory; ask for fewer elements", exit_failure);
  } catch (const std::exception& error) {
    return complain(error.what(), exit_failure);
  }
}
