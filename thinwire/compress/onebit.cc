// onebit.cc: 1-bit SGD (Seide et al. 2014): sends a bit per element and two means per unit of a
// layer, and keeps the error.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "thinwire/compress/matrix.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/compress/sign.h"

namespace thinwire {
namespace {

// Longer rows are cut, because their second read would not come from a cache; more means only fit
// better. 16384 elements and their residual are 128 KiB.
constexpr std::size_t longest = std::size_t{1} << 14;

// The number of weights into one unit: a column of the paper's matrices, and a contiguous row of
// shape[0] x rest as frameworks store them. A parameter that is no matrix is a single row.
std::size_t row_of(const Parameter& parameter) {
  const MatrixShape shape = matrix_shape(parameter);
  return shape.rows > 0 ? shape.cols : parameter.count;
}

// The groups are rows. Short rows are joined until they have `least` elements, so that the means
// take less space than the bits.
void add_groups(const Parameter& parameter, std::size_t least, std::vector<SignGroup>& groups) {
  if (parameter.count == 0) return;
  const std::size_t row = row_of(parameter), rows = parameter.count / row;
  const std::size_t joined = std::max<std::size_t>(1, (least + row - 1) / row);
  const std::size_t parts = std::max<std::size_t>(1, rows / joined);
  for (std::size_t k = 0; k < parts; ++k) {
    const std::size_t from = rows * k / parts * row, to = rows * (k + 1) / parts * row;
    cut_evenly(parameter.offset + from, to - from, std::max(longest, 2 * least), groups);
  }
}

std::vector<SignGroup> groups_of(const Options& options, const Bucket& bucket) {
  const auto least = static_cast<std::size_t>(options.integer("group", 1, 1 << 20));
  std::vector<SignGroup> groups;
  for (const Parameter& parameter : bucket.parameters) add_groups(parameter, least, groups);
  return groups;
}

}  // namespace

const Scheme& onebit_scheme() {
  static const Scheme scheme = describe_sign_scheme<7, SignLevels::two_means, groups_of>(
      {.name = "onebit",
       .paper = "Seide et al. 2014, 1-bit stochastic gradient descent",
       .summary = "Sends each sign and two means per unit of a layer, keeps the error.",
       .bits = "1 + 64 / max(row, group)",
       .options = {{"group", "512",
                    "Smallest number of elements that share two means, 1 to 1048576. Shorter rows "
                    "of a layer are joined."}},
       .variants = {"group=1", "group=64,memory=none", "group=3000,memory=residual"}});
  return scheme;
}

}  // namespace thinwire
