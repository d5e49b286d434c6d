// What the CPU kernels of RoIAlign and RoIPool share. Their inner loops run over channels: those of
// a channels-last map where they lie, those of a contiguous one in a packed copy of the box.
#pragma once

#include <algorithm>
#include <vector>

#include "rois.h"

namespace detlite {

// The channels that one pass keeps in registers.
constexpr int64_t kChannelBlock = 32;

// A thread takes at least this many channels in the backward kernels, which split them.
constexpr int64_t kChannelGrain = 16;

// Where bin `bin` of channel `c` lies among a RoI's pooled features.
struct PooledLayout {
  int64_t channel_stride, bin_stride;

  PooledLayout(bool channels_last, int64_t channels, int64_t bins)
      : channel_stride(channels_last ? 1 : bins), bin_stride(channels_last ? channels : 1) {}
};

template <typename T>
void check_batch_indices(const char* op, const Tensor& rois, int64_t batch_size) {
  const T* roi = static_cast<const T*>(rois.const_data_ptr());
  for (int64_t k = 0; k < rois.size(0); ++k, roi += kRoiSize) {
    check(batch_index(roi, batch_size) >= 0, op, ": rois[", k, ", 0] is batch index ", roi[0],
          ", but the batch has ", batch_size, " images");
  }
}

// Copies cells of a contiguous map to packed[row][column][channel], kChannelBlock channels to a
// cell, of which the first `count` are filled.
template <typename F, typename T>
void pack(const View4d<const F>& map, int64_t image, int64_t channel, int64_t count,
          const std::vector<int>& rows, const std::vector<int>& columns, std::vector<T>& packed) {
  const int64_t width = static_cast<int64_t>(columns.size());
  packed.resize(rows.size() * columns.size() * kChannelBlock);
  T* line = packed.data();
  for (int row : rows) {
    for (int64_t c = 0; c < count; ++c) {
      const F* source = map.at(image, channel + c, row, 0);
      for (int64_t x = 0; x < width; ++x) line[x * kChannelBlock + c] = T(source[columns[x]]);
    }
    line += width * kChannelBlock;
  }
}

// Adds such a copy to the map's cells.
template <typename T>
void add_packed(const std::vector<T>& packed, const View4d<T>& map, int64_t image, int64_t channel,
                int64_t count, const std::vector<int>& rows, const std::vector<int>& columns) {
  const int64_t width = static_cast<int64_t>(columns.size());
  const T* line = packed.data();
  for (int row : rows) {
    for (int64_t c = 0; c < count; ++c) {
      T* target = map.at(image, channel + c, row, 0);
      for (int64_t x = 0; x < width; ++x) target[columns[x]] += line[x * kChannelBlock + c];
    }
    line += width * kChannelBlock;
  }
}

}  // namespace detlite
