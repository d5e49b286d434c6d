// IoU of each box with a range of other boxes, by the rules of COCO's evaluation (bbIou in maskApi.c
// of pycocotools).
#include <algorithm>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "common/tensors.h"

namespace detlite {
namespace {

struct Box {
  double x, y, width, height;
  double area() const { return width * height; }
};

double shared_area(const Box& a, const Box& b) {
  const double width = std::min(a.x + a.width, b.x + b.width) - std::max(a.x, b.x);
  const double height = std::min(a.y + a.height, b.y + b.height) - std::max(a.y, b.y);
  return width > 0 && height > 0 ? width * height : 0;
}

Tensor box_overlaps(const Tensor& boxes, const Tensor& others, const Tensor& crowd,
                    const Tensor& ranges) {
  constexpr const char* op = "box_overlaps";
  const int64_t count = boxes.dim() ? boxes.size(0) : 0, other_count = others.dim() ? others.size(0) : 0;
  check_shape(op, "boxes", boxes, {count, 4}, ", (x, y, width, height)");
  check_shape(op, "others", others, {other_count, 4}, ", (x, y, width, height)");
  check_shape(op, "crowd", crowd, {other_count}, ", one for each of others");
  check_shape(op, "ranges", ranges, {count, 2}, ", one for each of boxes");
  check_dtype(op, "boxes", boxes, ScalarType::Double);
  check_dtype(op, "others", others, ScalarType::Double);
  check_dtype(op, "crowd", crowd, ScalarType::Bool);
  check_dtype(op, "ranges", ranges, ScalarType::Long);
  const auto dense = [](const Tensor& tensor) { return torch::stable::contiguous(tensor); };
  const Tensor all_boxes = dense(boxes), all_others = dense(others), all_crowd = dense(crowd),
               all_ranges = dense(ranges);
  const int64_t* range = data<int64_t>(all_ranges);
  std::vector<int64_t> offsets(1, 0);  // of the first pair of each box
  for (int64_t n = 0; n < count; ++n) {
    const int64_t first = range[2 * n], last = range[2 * n + 1];
    check(first >= 0 && first <= last && last <= other_count, op, ": ranges must be within ",
          other_count, " others, got ", first, " to ", last);
    offsets.push_back(offsets.back() + last - first);
  }
  const Tensor overlaps = empty(boxes, ScalarType::Double, {offsets.back()});
  const Box *box = reinterpret_cast<const Box*>(data<double>(all_boxes)),
            *other = reinterpret_cast<const Box*>(data<double>(all_others));
  const bool* is_crowd = data<bool>(all_crowd);
  double* const result = mutable_data<double>(overlaps);
  torch::stable::parallel_for(0, count, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      double* overlap = result + offsets[n];
      for (int64_t g = range[2 * n]; g < range[2 * n + 1]; ++g) {
        const double shared = shared_area(box[n], other[g]);
        const double own = box[n].area();
        const double whole = is_crowd[g] ? own : own + other[g].area() - shared;
        *overlap++ = shared > 0 ? shared / whole : 0;
      }
    }
  });
  return overlaps;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def("box_overlaps(Tensor boxes, Tensor others, Tensor crowd, Tensor ranges) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("box_overlaps", TORCH_BOX(&detlite::box_overlaps));
}
