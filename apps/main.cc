// main.cc: the thinwire command: reads the command line, runs a verb, prints errors as sentences.
// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "apps/nearest.h"
#include "apps/verb.h"

namespace {

using namespace thinwire::apps;

void add_verbs(CLI::App& command) {
  CLI::App* bench = command.add_subcommand(
      "bench", "Measure this machine; each row shows its floor and the ratio to it");
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

int complain(const std::string& text, int code) {
  progress("");
  std::cerr << "thinwire: " << text << '\n';
  return code;
}

// If the output could not be written, the command has failed.
int checked_output(int code) {
  std::cout << std::flush;
  if (std::cout) return code;
  return complain("cannot write to standard output; is the disk full, or did the reader exit?",
                  exit_failure);
}

// The verb of the command line, as far as it could be parsed.
struct Verb {
  const CLI::App* app;
  std::string name;  // "bench wire"; empty where there was none

  explicit Verb(const CLI::App& command) : app(&command) {
    while (!app->get_subcommands().empty()) {
      app = app->get_subcommands().front();
      name += (name.empty() ? "" : " ") + app->get_name();
    }
  }

  std::string help() const { return "thinwire " + (name.empty() ? "" : name + " ") + "--help"; }

  std::vector<std::string> flags() const {
    std::vector<std::string> all;
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) all.push_back("--" + name);
    }
    return all;
  }

  std::vector<std::string> verbs() const {
    std::vector<std::string> all;
    for (const CLI::App* each : app->get_subcommands([](const CLI::App*) { return true; }))
      all.push_back(each->get_name());
    return all;
  }
};

std::string unknown_verb(const Verb& verb, const std::string& word) {
  std::string text = verb.name + (verb.name.empty() ? "" : ": ") + "expected one of";
  for (const std::string& name : verb.verbs()) text += (text.back() == 'f' ? " " : ", ") + name;
  return word.empty() ? text : text + "; got '" + word + "'" + did_you_mean(word, verb.verbs());
}

std::string unknown_word(const Verb& verb, const std::string& word) {
  if (!word.starts_with("-")) return verb.name + " does not expect '" + word + "'";
  const std::string flag = word.substr(0, word.find('='));
  return verb.name + " has no flag '" + flag + "'" + did_you_mean(flag, verb.flags());
}

std::string sentence(const CLI::App& command, const CLI::ParseError& error) {
  const Verb verb(command);
  const std::vector<std::string> rest = command.remaining(true);
  std::string text = error.what();
  if (!verb.verbs().empty()) {
    text = unknown_verb(verb, rest.empty() ? "" : rest.front());
  } else if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    text = unknown_word(verb, rest.front());
  }
  return text + (text.back() == '?' ? " See " : "; see ") + verb.help();
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
      "\nRun `thinwire VERB --help` for details.\n");
  add_verbs(command);
  try {
    command.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return checked_output(command.exit(request));
  } catch (const CLI::ParseError& error) {
    return complain(sentence(command, error), exit_bad_input);
  }
  progress("");
  return checked_output(0);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    hand_over(argv);
    return run(argc, argv);
  } catch (const BadInput& error) {
    return complain(error.what(), exit_bad_input);
  } catch (const Interrupted& interrupted) {
    return complain(interrupted.what(), exit_interrupted);
  } catch (const std::bad_alloc&) {
    return complain("not enough memory; ask for fewer elements", exit_failure);
  } catch (const std::exception& error) {
    return complain(error.what(), exit_failure);
  }
}
