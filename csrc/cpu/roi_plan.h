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

template <typename T>
void check_batch_indices(const char* op, const Tensor& rois, int64_t batch_size) {
  const T* roi = static_cast<const T*>(rois.const_data_ptr());
  for (int64_t k = 0; k < rois.size(0); ++k, roi += kRoiSize) {
    check(batch_index(roi, batch_size) >= 0, op, ": rois[", k, ", 0] is batch index ", roi[0],
          ", but the batch has ", batch_size, " images");
  }
}

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

// build(const T* roi, int number, const LevelShape&, PlannedRoi<Axis>&) fills the axes.
template <typename Axis, typename T, typename Build>
std::vector<PlannedRoi<Axis>> plan_rois(const char* op, const Tensor& rois,
                                        const PyramidShape& pyramid, const Build& build) {
  check_batch_indices<T>(op, rois, pyramid.batch_size);
  constexpr int64_t grain = 64;
  const T* all = static_cast<const T*>(rois.const_data_ptr());
  std::vector<PlannedRoi<Axis>> planned(rois.size(0));
  std::vector<std::pair<uint64_t, int64_t>> order(rois.size(0));
  torch::stable::parallel_for(0, rois.size(0), grain, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      const T* roi = all + k * kRoiSize;
      PlannedRoi<Axis>& plan = planned[k];
      plan.number = k;
      plan.image = batch_index(roi, pyramid.batch_size);
      plan.level = level_of(roi, pyramid.rule);
      build(roi, pyramid.levels[plan.level], plan);
      order[k] = {position_key(plan), k};
    }
  });
  std::sort(order.begin(), order.end());
  std::vector<PlannedRoi<Axis>> sorted;
  sorted.reserve(planned.size());
  for (const auto& entry : order) sorted.push_back(std::move(planned[entry.second]));
  return sorted;
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
