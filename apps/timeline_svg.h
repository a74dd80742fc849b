// timeline_svg.h: timelines as SVG: a lane of what the worker does, and below it its messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/timeline.h"

namespace thinwire::apps {

// One <svg> of the first `span` seconds, as wide as its place, with an axis in milliseconds. The
// page styles it (timeline_style). Every bar says in a tooltip what it is and how long.
std::string timeline_picture(const Timeline& timeline, double span);

// The kinds of bars that the runs of a page have, as a list.
std::string timeline_legend(const std::vector<Timeline>& timelines);

// "34 steps in 120 ms, up to 20 messages in flight"
std::string timeline_words(const Timeline& timeline, double span);

// A file of its own: one timeline with its legend, its words and its looks.
std::string timeline_file(const Timeline& timeline);

}  // namespace thinwire::apps
