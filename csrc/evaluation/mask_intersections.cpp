// Intersection areas of run-length encoded masks, without bitmaps: each mask is decoded once into
// the ends of its runs, and two masks are compared run by run, starting where they begin to
// overlap.
#include <algorithm>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "common/tensors.h"

namespace detlite {
namespace {

// A mask as the ends of its runs. Runs alternate between background and foreground, beginning with
// background. Foreground run i covers pixels [ends[2i], ends[2i + 1]).
class Runs {
 public:
  // Decodes COCO's text (see encode() in paste_masks.cpp). Returns false if the text is malformed
  // or does not cover exactly `pixels` pixels.
  bool decode(const uint8_t* text, int64_t size, int64_t pixels) {
    ends_.clear();
    int64_t end = 0, counts[2] = {0, 0};  // the last two counts
    for (const uint8_t* const stop = text + size; text < stop;) {
      int64_t value = 0;
      int shift = 0;
      for (bool more = true; more; ++text) {
        const int code = text < stop ? *text - '0' : -1;
        if (code < 0 || code > 0x3f || shift > 30) return false;
        value |= int64_t{code & 0x1f} << shift;
        shift += 5;
        more = code & 0x20;
        if (!more && code & 0x10) value -= int64_t{1} << shift;
      }
      const size_t number = ends_.size();
      int64_t& count = counts[number % 2];
      count = number > 2 ? count + value : value;
      end += count;
      if (count < 0 || end > pixels) return false;
      ends_.push_back(static_cast<uint32_t>(end));
    }
    return end == pixels;
  }

  void clear() { ends_.clear(); }
  size_t count() const { return ends_.size() / 2; }  // of foreground runs
  uint32_t begin(size_t run) const { return ends_[2 * run]; }
  uint32_t end(size_t run) const { return ends_[2 * run + 1]; }

  int64_t area() const {
    int64_t area = 0;
    for (size_t i = 0; i < count(); ++i) area += end(i) - begin(i);
    return area;
  }

  // Returns the first run that ends after a position.
  size_t first_after(uint32_t position) const {
    size_t low = 0, high = count();
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (end(middle) > position) high = middle;
      else low = middle + 1;
    }
    return low;
  }

 private:
  std::vector<uint32_t> ends_;
};

int64_t intersection(const Runs& a, const Runs& b) {
  if (a.count() == 0 || b.count() == 0) return 0;
  int64_t pixels = 0;
  size_t i = a.first_after(b.begin(0)), j = b.first_after(a.begin(0));
  while (i < a.count() && j < b.count()) {
    const uint32_t low = std::max(a.begin(i), b.begin(j)), high = std::min(a.end(i), b.end(j));
    pixels += high > low ? high - low : 0;
    const bool first = a.end(i) < b.end(j);
    i += first;
    j += !first;
  }
  return pixels;
}

// The concatenated texts of several masks.
struct EncodedMasks {
  Tensor text, lengths, pixels;
  std::vector<int64_t> starts;

  EncodedMasks(const Tensor& all_data, const Tensor& all_lengths, const Tensor& all_pixels,
               const char* name)
      : text(all_data), lengths(all_lengths), pixels(all_pixels) {
    constexpr const char* op = "mask_intersections";
    check(text.dim() == 1 && text.scalar_type() == ScalarType::Byte, op, ": ", name,
          " must be uint8 of one dimension, got ", dtype_name(text.scalar_type()), " ",
          Shape{text});
    for (const Tensor* tensor : {&lengths, &pixels}) {
      check(tensor->scalar_type() == ScalarType::Long && tensor->dim() == 1 &&
                tensor->size(0) == lengths.size(0),
            op, ": lengths and pixels of ", name, " must be int64 of one size, got ",
            dtype_name(tensor->scalar_type()), " ", Shape{*tensor});
    }
    text = torch::stable::contiguous(text);
    lengths = torch::stable::contiguous(lengths);
    pixels = torch::stable::contiguous(pixels);
    starts.assign(1, 0);
    for (int64_t i = 0; i < count(); ++i) {
      const int64_t length = at(lengths, i);
      check(length >= 0 && length <= text.size(0) - starts.back(), op, ": lengths of ", name,
            " must add up to its ", text.size(0), " bytes");
      starts.push_back(starts.back() + length);
      check(at(pixels, i) >= 0 && at(pixels, i) <= std::numeric_limits<uint32_t>::max(), op,
            ": pixels of ", name, " must be from 0 to 2^32 - 1, got ", at(pixels, i));
    }
    check(starts.back() == text.size(0), op, ": lengths of ", name, " must add up to its ",
          text.size(0), " bytes");
  }

  static int64_t at(const Tensor& tensor, int64_t i) { return data<int64_t>(tensor)[i]; }
  int64_t count() const { return lengths.size(0); }

  // Returns the area of a mask, or -1 and no runs for an invalid text.
  int64_t read(int64_t i, Runs& runs) const {
    const uint8_t* begin = data<uint8_t>(text) + starts[i];
    if (runs.decode(begin, starts[i + 1] - starts[i], at(pixels, i))) return runs.area();
    runs.clear();
    return -1;
  }
};

std::tuple<Tensor, Tensor, Tensor> mask_intersections(const Tensor& text, const Tensor& lengths,
                                                      const Tensor& pixels, const Tensor& index,
                                                      const Tensor& other_data,
                                                      const Tensor& other_lengths,
                                                      const Tensor& other_pixels,
                                                      const Tensor& ranges) {
  constexpr const char* op = "mask_intersections";
  const EncodedMasks masks(text, lengths, pixels, "masks"),
      others(other_data, other_lengths, other_pixels, "others");
  check(index.dim() == 1 && index.scalar_type() == ScalarType::Long, op,
        ": index must be int64 of one dimension, got ", dtype_name(index.scalar_type()), " ",
        Shape{index});
  const int64_t count = index.size(0);
  check(ranges.dim() == 2 && ranges.size(0) == count && ranges.size(1) == 2 &&
            ranges.scalar_type() == ScalarType::Long,
        op, ": ranges must be int64 [", count, ", 2], got ", dtype_name(ranges.scalar_type()), " ",
        Shape{ranges});
  const Tensor dense_index = torch::stable::contiguous(index),
               dense_ranges = torch::stable::contiguous(ranges);
  const int64_t *selected = data<int64_t>(dense_index), *range = data<int64_t>(dense_ranges);
  std::vector<int64_t> offsets(1, 0);  // of the first pair of each row
  for (int64_t n = 0; n < count; ++n) {
    const int64_t first = range[2 * n], last = range[2 * n + 1];
    check(selected[n] >= 0 && selected[n] < masks.count(), op, ": index must be from 0 to ",
          masks.count() - 1, ", got ", selected[n]);
    check(first >= 0 && first <= last && last <= others.count(), op, ": ranges must be within ",
          others.count(), " others, got ", first, " to ", last);
    offsets.push_back(offsets.back() + last - first);
  }

  const Tensor shared = empty(index, ScalarType::Long, {offsets.back()});
  const Tensor areas = empty(index, ScalarType::Long, {count});
  const Tensor other_areas = empty(index, ScalarType::Long, {others.count()});
  auto* const shared_pixels = mutable_data<int64_t>(shared);
  auto* const area = mutable_data<int64_t>(areas);
  auto* const other_area = mutable_data<int64_t>(other_areas);

  std::vector<Runs> other_runs(others.count());
  torch::stable::parallel_for(0, others.count(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) other_area[g] = others.read(g, other_runs[g]);
  });
  torch::stable::parallel_for(0, count, 64, [&](int64_t begin, int64_t end) {
    Runs runs;
    for (int64_t n = begin; n < end; ++n) {
      area[n] = masks.read(selected[n], runs);
      int64_t* result = shared_pixels + offsets[n];
      for (int64_t g = range[2 * n]; g < range[2 * n + 1]; ++g) {
        *result++ = intersection(runs, other_runs[g]);
      }
    }
  });
  return {shared, areas, other_areas};
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def(
      "mask_intersections(Tensor data, Tensor lengths, Tensor pixels, Tensor index, "
      "Tensor other_data, Tensor other_lengths, Tensor other_pixels, Tensor ranges) "
      "-> (Tensor shared, Tensor areas, Tensor other_areas)");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("mask_intersections", TORCH_BOX(&detlite::mask_intersections));
}
