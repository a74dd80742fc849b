// powersgd_layout.cc: chooses the matrices that are sent as factors.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/powersgd_layout.h"

#include "thinwire/compress/matrix.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/core/random.h"

namespace thinwire {

PowerSgdLayout lay_out(const Bucket& bucket, std::size_t rank, double rate, std::uint64_t seed) {
  PowerSgdLayout all;
  for (const Parameter& parameter : bucket.parameters) {
    const auto [rows, cols] = matrix_shape(parameter);
    const std::size_t columns = std::min({rank, rows, cols});
    const auto factors = static_cast<double>((rows + cols) * columns);
    if (columns > 0 && factors * rate < static_cast<double>(parameter.count)) {
      const auto name = crc32c(std::as_bytes(std::span(parameter.name)));
      all.matrices.push_back({parameter.name, parameter.offset, rows, cols, columns, all.p, all.q,
                              random_at(seed, name)});
      all.p += rows * columns;
      all.q += cols * columns;
    } else if (parameter.count > 0) {
      all.plain.push_back({parameter.offset, parameter.count});
      all.plain_count += parameter.count;
    }
  }
  return all;
}

}  // namespace thinwire
