// The outcome of a detection in COCO's evaluation.
#pragma once

#include <cstdint>

namespace detlite {

enum MatchOutcome : uint8_t { kFalsePositive, kTruePositive, kIgnored };

}  // namespace detlite
