// inspect_notorch.cc: the error of `thinwire inspect --model` when there is no thinwire-torch.
// SPDX-License-Identifier: Apache-2.0
#include "apps/inspect_model.h"
#include "apps/verb.h"

namespace thinwire::apps {

void inspect_model(const ModelSettings&) {
  throw BadInput(
      "inspect --model: this thinwire was built without libtorch and gloo's headers; see "
      "docs/dependencies.md");
}

}  // namespace thinwire::apps
