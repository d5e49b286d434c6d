// Boxes stored as one array per coordinate, the layout of the inner loops.
#pragma once

#include <limits>
#include <vector>

#include "common/iou.h"
#include "simd/inner_loops.h"

namespace detlite {

class BoxColumns {
 public:
  // Fills `capacity` places, a multiple of kBoxPadding, with boxes that overlap nothing.
  void reset(int64_t capacity) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    x1_.assign(capacity, infinity);
    y1_.assign(capacity, infinity);
    x2_.assign(capacity, -infinity);
    y2_.assign(capacity, -infinity);
    area_.assign(capacity, 1);
  }

  void set(int64_t at, const Box<float>& box, float area) {
    x1_[at] = box.x1;
    y1_[at] = box.y1;
    x2_[at] = box.x2;
    y2_[at] = box.y2;
    area_[at] = area;
  }

  BoxArrays from(int64_t at) const {
    return {x1_.data() + at, y1_.data() + at, x2_.data() + at, y2_.data() + at, area_.data() + at};
  }

 private:
  std::vector<float> x1_, y1_, x2_, y2_, area_;
};

constexpr int64_t round_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace detlite
