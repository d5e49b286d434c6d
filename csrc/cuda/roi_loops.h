// What the CUDA kernels of RoIAlign and RoIPool share.
#pragma once

#include "launch.h"
#include "rois.h"

namespace detlite {

// One element of the pooled features, [K, C, pooled height, pooled width].
struct Pooled {
  int64_t roi, channel;
  int row, column;
};

// Neighbouring threads take neighbouring elements in memory, whichever dimension is innermost.
__device__ inline Pooled pooled_element(int64_t i, int64_t channels, int height, int width,
                                        bool channels_last) {
  Pooled p;
  if (channels_last) {
    p.channel = i % channels;
    i /= channels;
  }
  p.column = static_cast<int>(i % width);
  i /= width;
  p.row = static_cast<int>(i % height);
  i /= height;
  if (!channels_last) {
    p.channel = i % channels;
    i /= channels;
  }
  p.roi = i;
  return p;
}

// The image of a RoI. An index outside the batch ends the kernel with an error that torch reports
// at the next synchronisation, as its own indexing does: asking first would stall the stream.
template <typename T>
__device__ int64_t image_or_trap(const T* roi, int64_t batch_size) {
  const int64_t image = batch_index(roi, batch_size);
  if (image < 0) __trap();
  return image;
}

}  // namespace detlite
