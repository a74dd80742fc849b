// report.cc: field by field.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/report.h"

namespace thinwire::ddp {

Report combine(const Report& a, const Report& b, double sign) {
  const auto add = [sign](auto x, auto y) { return sign > 0 ? x + y : x - y; };
  Report sum;
  sum.steps = add(a.steps, b.steps);
  sum.skipped = add(a.skipped, b.skipped);
  sum.payload_bytes = add(a.payload_bytes, b.payload_bytes);
  sum.dense_bytes = add(a.dense_bytes, b.dense_bytes);
  sum.traffic = {add(a.traffic.sent, b.traffic.sent), add(a.traffic.received, b.traffic.received),
                 add(a.traffic.collectives, b.traffic.collectives)};
  sum.encode_seconds = add(a.encode_seconds, b.encode_seconds);
  sum.wait_seconds = add(a.wait_seconds, b.wait_seconds);
  sum.decode_seconds = add(a.decode_seconds, b.decode_seconds);
  return sum;
}

}  // namespace thinwire::ddp
