// low_rank_nohwy.cc: a matrix and its thin factors where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/low_rank.h"

namespace thinwire {

bool low_rank_take(const Panel& panel, const float* g, float* e, const float* q, float* p) {
  return low_rank_take_reference(panel, g, e, q, p);
}

void low_rank_project(const Panel& panel, const float* e, const float* p, float* q) {
  low_rank_project_reference(panel, e, p, q);
}

void low_rank_give(const Panel& panel, const float* p, const float* q, float* average) {
  low_rank_give_reference(panel, p, q, average);
}

void low_rank_settle(const Panel& panel, const float* p, const float* q, float* e) {
  low_rank_settle_reference(panel, p, q, e);
}

}  // namespace thinwire
