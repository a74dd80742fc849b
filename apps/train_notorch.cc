// train_notorch.cc: what `thinwire train` and `thinwire bench step` say where torch or gloo's headers were not found.
// SPDX-License-Identifier: Apache-2.0
#include "apps/verb.h"

namespace thinwire::apps {
namespace {

void add_absent(CLI::App& parent, const std::string& name) {
  CLI::App* verb = parent.add_subcommand(name, "Not in this build: needs libtorch");
  verb->allow_extras();
  verb->callback([name] {
    throw BadInput(name +
                   ": this thinwire was built without libtorch and gloo's headers; see "
                   "docs/dependencies.md");
  });
}

}  // namespace

void add_train(CLI::App& parent) { add_absent(parent, "train"); }
void add_bench_step(CLI::App& parent) { add_absent(parent, "step"); }

}  // namespace thinwire::apps
