// train_notorch.cc: what `thinwire train` says where torch or gloo's headers were not found.
// SPDX-License-Identifier: Apache-2.0
#include "apps/verb.h"

namespace thinwire::apps {

void add_train(CLI::App& parent) {
  CLI::App* verb = parent.add_subcommand("train", "Not in this build: needs libtorch");
  verb->allow_extras();
  verb->callback([] {
    throw BadInput(
        "train: this thinwire was built without libtorch and gloo's headers; see "
        "docs/dependencies.md");
  });
}

}  // namespace thinwire::apps
