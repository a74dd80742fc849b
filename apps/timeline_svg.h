// timeline_svg.h: timelines as SVG: a lane for the worker's activity, and its messages below.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/timeline.h"

namespace thinwire::apps {

// One <svg> of the first `span` seconds, as wide as its container, with an axis in milliseconds.
// The page styles it (timeline_style). Every bar has a tooltip with its name and duration.
std::string timeline_picture(const Timeline& timeline, double span);

// The kinds of bars in the runs of a page, as a list.
std::string timeline_legend(const std::vector<Timeline>& timelines);

// "34 steps in 120 ms, up to 20 messages in flight"
std::string timeline_words(const Timeline& timeline, double span);

// A separate file: one timeline with its legend, caption and style.
std::string timeline_file(const Timeline& timeline);

}  // namespace thinwire::apps
