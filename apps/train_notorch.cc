// train_notorch.cc: the verbs of thinwire-torch in a build without torch: only their names.
// SPDX-License-Identifier: Apache-2.0
#include "apps/verb.h"

namespace thinwire::apps {
namespace {

void add_absent(CLI::App& parent, const std::string& name, const std::string& what) {
  CLI::App* verb = parent.add_subcommand(name, what + " (needs libtorch)");
  verb->allow_extras();
  verb->callback([name] {
    throw BadInput(name +
                   ": this thinwire was built without libtorch and gloo's headers; see "
                   "docs/dependencies.md");
  });
}

}  // namespace

void add_train(CLI::App& parent) {
  add_absent(parent, "train", "Train a network on several workers");
}
void add_bench_step(CLI::App& parent) {
  add_absent(parent, "step",
             "Measure training steps through an exchange, against plain all-reduce");
}

}  // namespace thinwire::apps
