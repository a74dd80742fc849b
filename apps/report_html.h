// report_html.h: what `thinwire compare` found out, as one page that needs nothing but itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/table.h"

namespace thinwire::apps {

// `comparison` is what `thinwire compare --json` writes; docs/compare.md names its keys. Whatever
// it lacks is left out of the page; a value of the wrong kind counts as lacking. The page is
// well-formed XML, so that a test can read it.
std::string report_html(const Row& comparison);

}  // namespace thinwire::apps
