// The plan of a RoIAlign or RoIPool call on the CPU: the geometry of each RoI, computed before any
// feature is read, and the order in which RoIs are processed.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "common/roi_pool_geometry.h"
#include "common/roi_pooling.h"

namespace detlite {

// Axis is the geometry along one axis. Its member `touched` is the range of cells that the RoI
// reads.
template <typename Axis>
struct PlannedRoi {
  int64_t number, image;
  int level;
  Axis rows, columns;

  bool touches_nothing() const { return rows.touched.is_empty() || columns.touched.is_empty(); }
};

template <typename Axis>
struct RoiPlan {
  std::vector<PlannedRoi<Axis>> rois;
  std::vector<int64_t> padding;  // the numbers of the padding RoIs
};

// Sorts RoIs by level, image, band of rows and column, so that consecutive RoIs read nearby cells
// while these are still cached.
template <typename Axis>
uint64_t position_key(const PlannedRoi<Axis>& roi) {
  constexpr int band = 32;
  const auto bits = [](int64_t value, int count) {
    return static_cast<uint64_t>(std::clamp<int64_t>(value, 0, (int64_t{1} << count) - 1));
  };
  return bits(roi.level, 3) << 61 | bits(roi.image, 29) << 32 |
         bits(roi.rows.touched.begin / band, 16) << 16 | bits(roi.columns.touched.begin, 16);
}

// build(const T* roi, const LevelShape&, PlannedRoi<Axis>&) fills the axes. Throws for an image or
// a level that does not exist. The level of a padding RoI is ignored.
template <typename Axis, typename T, typename Build>
RoiPlan<Axis> plan_rois(const char* op, const PoolingCall& call, const Build& build) {
  const PyramidShape& pyramid = call.pyramid;
  const T* rois = data<T>(call.rois);
  const int64_t* levels = data<int64_t>(call.levels);
  RoiPlan<Axis> plan;
  std::vector<PlannedRoi<Axis>> planned;
  planned.reserve(call.roi_count());
  for (int64_t k = 0; k < call.roi_count(); ++k) {
    const int64_t image = image_of(rois + k * kRoiSize, pyramid.batch_size);
    if (image == kPadding) {
      plan.padding.push_back(k);
      continue;
    }
    check(image >= 0, op, ": rois[", k, ", 0] is batch index ", rois[k * kRoiSize],
          ", but the batch has ", pyramid.batch_size, " images");
    check(levels[k] >= 0 && levels[k] < pyramid.level_count(), op, ": levels[", k, "] is ",
          levels[k], ", but there are ", pyramid.level_count(), " maps");
    planned.push_back({k, image, static_cast<int>(levels[k]), {}, {}});
  }

  constexpr int64_t grain = 64;
  std::vector<std::pair<uint64_t, size_t>> order(planned.size());
  torch::stable::parallel_for(0, planned.size(), grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      PlannedRoi<Axis>& roi = planned[i];
      build(rois + roi.number * kRoiSize, pyramid.levels[roi.level], roi);
      order[i] = {position_key(roi), i};
    }
  });
  std::sort(order.begin(), order.end());
  plan.rois.reserve(planned.size());
  for (const auto& entry : order) plan.rois.push_back(std::move(planned[entry.second]));
  return plan;
}

// Requests huge pages for a result that has not been written yet. Writing it then causes one page
// fault per 2 MiB instead of 512, which would take longer than the arithmetic.
inline void prefer_huge_pages(const Tensor& tensor) {
#if defined(__linux__)
  constexpr uintptr_t page = uintptr_t{2} << 20;
  const auto bytes = static_cast<uintptr_t>(tensor.numel()) * tensor.element_size();
  if (bytes < 4 * page) return;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t last = (begin + bytes) / page * page;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // may fail harmlessly
#else
  (void)tensor;
#endif
}

}  // namespace detlite
