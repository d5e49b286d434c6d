// What RoIAlign and RoIPool on the CPU know of each RoI before they touch a feature, and the order
// in which they take them.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "pyramid.h"
#include "roi_pool_geometry.h"

namespace detlite {

// Axis has a member `touched`, the cells that the RoI reads along it.
template <typename Axis>
struct PlannedRoi {
  int64_t number, image;
  int level;
  Axis rows, columns;

  bool touches_nothing() const {
    return rows.touched.begin >= rows.touched.end || columns.touched.begin >= columns.touched.end;
  }
};

template <typename Axis>
struct RoiPlan {
  std::vector<PlannedRoi<Axis>> rois;
  std::vector<int64_t> padding;  // the numbers of the others
};

// Neighbours follow each other, so that cells are still in the cache when the next RoI reads them:
// by level, by image, by bands of rows, and along each band.
template <typename Axis>
uint64_t position_key(const PlannedRoi<Axis>& roi) {
  constexpr int band = 32;
  const auto bits = [](int64_t value, int count) {
    return static_cast<uint64_t>(std::clamp<int64_t>(value, 0, (int64_t{1} << count) - 1));
  };
  return bits(roi.level, 3) << 61 | bits(roi.image, 29) << 32 |
         bits(roi.rows.touched.begin / band, 16) << 16 | bits(roi.columns.touched.begin, 16);
}

// build(const T* roi, const LevelShape&, PlannedRoi<Axis>&) fills the axes. Refuses an image or a
// level that there is not; the level of padding does not matter.
template <typename Axis, typename T, typename Build>
RoiPlan<Axis> plan_rois(const char* op, const Tensor& rois, const Tensor& levels,
                        const PyramidShape& pyramid, const Build& build) {
  const Tensor boxes = torch::stable::contiguous(rois);
  const Tensor numbers = torch::stable::contiguous(levels);
  const T* all = static_cast<const T*>(boxes.const_data_ptr());
  const int64_t* level_of = static_cast<const int64_t*>(numbers.const_data_ptr());
  RoiPlan<Axis> plan;
  std::vector<PlannedRoi<Axis>> planned;
  planned.reserve(rois.size(0));
  for (int64_t k = 0; k < rois.size(0); ++k) {
    const int64_t image = image_of(all + k * kRoiSize, pyramid.batch_size);
    if (image == kPadding) {
      plan.padding.push_back(k);
      continue;
    }
    check(image >= 0, op, ": rois[", k, ", 0] is batch index ", all[k * kRoiSize],
          ", but the batch has ", pyramid.batch_size, " images");
    check(level_of[k] >= 0 && level_of[k] < pyramid.level_count(), op, ": levels[", k, "] is ",
          level_of[k], ", but there are ", pyramid.level_count(), " maps");
    planned.push_back({k, image, static_cast<int>(level_of[k]), {}, {}});
  }

  constexpr int64_t grain = 64;
  std::vector<std::pair<uint64_t, size_t>> order(planned.size());
  torch::stable::parallel_for(0, planned.size(), grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      PlannedRoi<Axis>& roi = planned[i];
      build(all + roi.number * kRoiSize, pyramid.levels[roi.level], roi);
      order[i] = {position_key(roi), i};
    }
  });
  std::sort(order.begin(), order.end());
  plan.rois.reserve(planned.size());
  for (const auto& entry : order) plan.rois.push_back(std::move(planned[entry.second]));
  return plan;
}

// Asks for large pages under a result that has yet to be written. Its first touch then costs one
// page fault for 2 MiB and not 512 of them, which would take longer than the arithmetic.
inline void prefer_large_pages(const Tensor& tensor) {
#if defined(__linux__)
  constexpr uintptr_t page = uintptr_t{2} << 20;
  const auto bytes = static_cast<uintptr_t>(tensor.numel()) * tensor.element_size();
  if (bytes < 4 * page) return;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + bytes) / page * page;
  // Only advice: a kernel that does not know it loses nothing.
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
  (void)tensor;
#endif
}

}  // namespace detlite
