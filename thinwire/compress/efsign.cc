// efsign.cc: EF-signSGD (Karimireddy et al. 2019): sends a bit per element and one magnitude per
// group of a layer, and keeps the error.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/schemes.h"
#include "thinwire/compress/sign.h"

namespace thinwire {
namespace {

// The groups: layers, or parts of layers.
std::vector<SignGroup> groups_of(const Options& options, const Bucket& bucket) {
  const auto longest = static_cast<std::size_t>(options.integer("group", 0, 1 << 20));
  std::vector<SignGroup> groups;
  for (const Parameter& parameter : bucket.parameters) {
    if (parameter.count == 0) continue;
    cut_evenly(parameter.offset, parameter.count, longest == 0 ? parameter.count : longest, groups);
  }
  return groups;
}

}  // namespace

const Scheme& efsign_scheme() {
  static const Scheme scheme = describe_sign_scheme<13, SignLevels::magnitude, groups_of>(
      {.name = "efsign",
       .paper = "Karimireddy et al. 2019, Error feedback fixes SignSGD",
       .summary = "Sends each sign and the mean magnitude of a group of a layer, keeps the error.",
       .bits = "1 + 32 / group",
       .options = {{"group", "512",
                    "Largest number of elements that share a magnitude, 1 to 1048576; 0: the whole "
                    "layer, as in the paper. Up to 16384 is fastest."}},
       .variants = {"group=0", "memory=none", "group=4096,memory=residual"}});
  return scheme;
}

}  // namespace thinwire
