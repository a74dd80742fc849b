// report_html.h: the results of `thinwire compare` as one self-contained page.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/table.h"

namespace thinwire::apps {

// `comparison` is what `thinwire compare --json` writes; docs/compare.md lists its keys. The page
// omits what is missing; a value of the wrong type counts as missing. The page is well-formed XML,
// so that a test can read it.
std::string report_html(const Row& comparison);

}  // namespace thinwire::apps
