// Crops ground-truth masks to boxes without ever making their bitmaps: polygons are drawn on the
// cells of the crop, and of run lengths only the pixels under the box are looked up, a bit each.
#include <algorithm>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "axis_operator.h"
#include "crop_masks.h"

namespace detlite {
namespace {

constexpr int kWord = 64;

// Bit i of the result is the parity of the bits up to i.
uint64_t prefix_parity(uint64_t bits) {
  for (int shift = 1; shift < kWord; shift *= 2) bits ^= bits << shift;
  return bits;
}

// Columns of bits, each a number of whole words.
class BitColumns {
 public:
  void clear(int columns, int rows) {
    words_ = (rows + kWord - 1) / kWord;
    bits_.assign(static_cast<size_t>(columns) * words_, 0);
  }
  int words() const { return words_; }
  uint64_t* column(int x) { return bits_.data() + static_cast<size_t>(x) * words_; }
  bool at(int x, int y) { return column(x)[y / kWord] >> (y % kWord) & 1; }
  void flip(int x, int y) { column(x)[y / kWord] ^= uint64_t{1} << (y % kWord); }

  // Where bits marked edges, those at and below an odd number of edges are then set; or, if the bits
  // above the first edge are `set`, the others.
  void fill_between_edges(int x, bool set) {
    uint64_t above = set ? ~uint64_t{0} : 0;
    for (int w = 0; w < words_; ++w) {
      const uint64_t bits = prefix_parity(column(x)[w]) ^ above;
      column(x)[w] = bits;
      above = bits >> (kWord - 1) ? ~uint64_t{0} : 0;
    }
  }

  // Whether any, and whether all bits of rows [begin, end) are set.
  void inspect(int x, int begin, int end, bool& any, bool& all) {
    for (int y = begin; y < end;) {
      const int low = y % kWord, count = std::min(kWord - low, end - y);
      const uint64_t mask = ~uint64_t{0} >> (kWord - count) << low;
      const uint64_t bits = column(x)[y / kWord] & mask;
      any |= bits != 0;
      all &= bits == mask;
      y += count;
    }
  }

 private:
  int words_ = 0;
  std::vector<uint64_t> bits_;
};

class Cropper {
 public:
  Cropper(const MaskArrays& masks, int resolution, bool soft)
      : masks_(masks), resolution_(resolution), soft_(soft) {}

  void crop(int64_t instance, const float* box, float* cells) {
    std::fill_n(cells, resolution_ * resolution_, 0.0f);
    if (instance < 0) return;
    const int64_t first = masks_.instances[instance], last = masks_.instances[instance + 1];
    if (first == last) return;
    const int64_t* frame = masks_.frames + instance * kFrameSize;
    if (frame[0] == 0) crop_polygons(first, last, box, cells);
    else crop_runs(first, rows_of(frame), columns_of(frame), box, cells);
  }

 private:
  void crop_polygons(int64_t first, int64_t last, const float* box, float* cells) {
    const FineGrid grid(box, resolution_);
    mask_.clear(resolution_, resolution_);
    for (int64_t piece = first; piece < last; ++piece) {
      const double* begin = masks_.values + masks_.pieces[piece];
      const double* end = masks_.values + masks_.pieces[piece + 1];
      if (begin == end) continue;
      edges_.clear(resolution_, resolution_);
      FinePoint from(end - 2, grid);
      for (const double* xy = begin; xy < end; xy += 2) {
        const FinePoint to(xy, grid);
        // A row past the last one toggles nothing: every column is crossed an even number of times.
        cross_columns(from, to, resolution_, [this](int column, int row) {
          if (row < resolution_) edges_.flip(column, row);
        });
        from = to;
      }
      for (int x = 0; x < resolution_; ++x) {
        edges_.fill_between_edges(x, false);
        for (int w = 0; w < mask_.words(); ++w) mask_.column(x)[w] |= edges_.column(x)[w];
      }
    }
    for (int y = 0; y < resolution_; ++y) {
      for (int x = 0; x < resolution_; ++x) *cells++ = mask_.at(x, y);
    }
  }

  // RoIAlign of the bitmap, its sums in the order of RoIAlign's own kernel.
  void crop_runs(int64_t piece, const NearestAxis& high, const NearestAxis& wide, const float* box,
                 float* cells) {
    const auto axis = [&](float low, float end, const NearestAxis& frame) {
      return bins_from_cells(align_axis(low, end, 1.0f, resolution_, 0, !soft_), resolution_,
                             static_cast<int>(frame.target));
    };
    const AxisOperator<float> rows = axis(box[1], box[3], high);
    const AxisOperator<float> columns = axis(box[0], box[2], wide);
    look_up(piece, high, wide, rows.touched, columns.touched);
    for (const Line& row : rows.lines) {
      sum_bins(rows, row, columns, cells);
      cells += resolution_;
    }
  }

  // Sets mask_ to the pixels that the box touches.
  void look_up(int64_t piece, const NearestAxis& high, const NearestAxis& wide, CellRange rows,
               CellRange columns) {
    const double* begin = masks_.values + masks_.pieces[piece];
    const double* end = masks_.values + masks_.pieces[piece + 1];
    const int height = rows.end - rows.begin, width = columns.end - columns.begin;
    mask_.clear(width, height);
    if (height == 0 || width == 0) return;
    const int64_t top = std::min(high(rows.begin), high(rows.end - 1));
    const int64_t bottom = std::max(high(rows.begin), high(rows.end - 1));
    // Counted from `top`, how many of the pixels lie above each source row.
    above_.assign(bottom - top + 2, 0);
    for (int y = rows.begin; y < rows.end; ++y) ++above_[high(y) - top + 1];
    for (size_t i = 1; i < above_.size(); ++i) above_[i] += above_[i - 1];

    int64_t last = -1;
    for (int x = 0; x < width; ++x) {
      const int64_t column = wide(columns.begin + x), start = column * high.source + top;
      if (column == last) {
        std::copy_n(mask_.column(x - 1), mask_.words(), mask_.column(x));
        continue;
      }
      last = column;
      const double* first = std::upper_bound(begin, end, static_cast<double>(start));
      const double* toggle = first;
      for (; toggle != end && *toggle <= static_cast<double>(start + bottom - top); ++toggle) {
        const double source = std::ceil(*toggle - static_cast<double>(start));
        if (!(source > 0)) continue;  // toggles out of order, or NaN
        const int edge = above_[static_cast<int64_t>(source)];
        mask_.flip(x, high.flip ? height - edge : edge);
      }
      mask_.fill_between_edges(x, ((high.flip ? toggle : first) - begin) % 2);
    }
  }

  // RoIAlign's sums over one row of bins. Each is taken in the same order as by itself; the
  // processor takes several at a time.
  void sum_bins(const AxisOperator<float>& rows, const Line& row,
                const AxisOperator<float>& columns, float* sums) {
    if (row.begin == row.end) return;
    const int top = rows.touched.begin, left = columns.touched.begin;
    const int first = rows.taps[row.begin].from - top, last = rows.taps[row.end - 1].from - top + 1;
    mixed_.clear();
    for (int j = 0; j < resolution_; ++j) {
      const Line& column = columns.lines[j];
      bool any = false, all = true;
      for (int k = column.begin; k < column.end; ++k) {
        mask_.inspect(columns.taps[k].from - left, first, last, any, all);
      }
      if (!any) continue;
      // Most bins are all inside. Their weights add up to one, but at the edges of the image.
      const bool inside = all && sum(rows, row) * sum(columns, column) > 0.75f;
      if (inside && !soft_) sums[j] = 1;
      else mixed_.push_back(j);
    }
    for (int r = row.begin; r < row.end; ++r) {
      const Tap<float>& down = rows.taps[r];
      for (const int j : mixed_) {
        float value = sums[j];
        for (int k = columns.lines[j].begin; k < columns.lines[j].end; ++k) {
          const Tap<float>& along = columns.taps[k];
          value += mask_.at(along.from - left, down.from - top) ? down.weight * along.weight : 0.0f;
        }
        sums[j] = value;
      }
    }
    if (soft_) return;
    for (const int j : mixed_) sums[j] = sums[j] >= 0.5f;
  }

  static float sum(const AxisOperator<float>& axis, const Line& line) {
    float weights = 0;
    for (int i = line.begin; i < line.end; ++i) weights += axis.taps[i].weight;
    return weights;
  }

  MaskArrays masks_;
  int resolution_;
  bool soft_;
  BitColumns mask_, edges_;
  std::vector<int> above_, mixed_;
};

void check_offsets(const char* op, const char* name, const int64_t* offsets, int64_t count,
                   const char* of, int64_t most) {
  for (int64_t i = 0; i <= count; ++i) {
    check(offsets[i] >= (i ? offsets[i - 1] : 0) && offsets[i] <= most, op, ": ", name,
          " must increase from 0 to the ", most, " ", of, ", got ", offsets[i], " at place ", i);
  }
}

void check_masks(const char* op, const MaskArrays& masks, bool soft) {
  check_offsets(op, "pieces", masks.pieces, masks.piece_count, "values", masks.value_count);
  check_offsets(op, "instances", masks.instances, masks.instance_count, "pieces",
                masks.piece_count);
  for (int64_t i = 0; i < masks.instance_count; ++i) {
    const int64_t first = masks.instances[i], last = masks.instances[i + 1];
    if (first == last) continue;
    const int64_t* frame = masks.frames + i * kFrameSize;
    if (frame[0] == 0) {
      check(!soft, op, ": instance ", i, " is polygons, and soft masks need run lengths");
      for (int64_t piece = first; piece < last; ++piece) {
        check((masks.pieces[piece + 1] - masks.pieces[piece]) % 2 == 0, op, ": piece ", piece,
              " must have an x and a y for each corner, got an odd number of values");
      }
    } else {
      check(last - first == 1, op, ": instance ", i, " is run lengths and must have one piece, got ",
            last - first);
      check(rows_of(frame).usable() && columns_of(frame).usable(), op, ": frames[", i,
            "] must have sides from 1 to ", kLongestSource, ", and from 1 to ", kLongestTarget,
            " in the network's input");
    }
  }
}

Tensor crop_masks(const Tensor& values, const Tensor& pieces, const Tensor& instances,
                  const Tensor& frames, const Tensor& index, const Tensor& boxes,
                  int64_t resolution, bool soft) {
  constexpr const char* op = "crop_masks";
  const CropArguments arguments =
      check_crop(op, values, pieces, instances, frames, index, boxes, resolution, soft);
  const MaskArrays masks = arguments.masks();
  check_masks(op, masks, soft);
  const auto* which = static_cast<const int64_t*>(arguments.index.const_data_ptr());
  for (int64_t i = 0; i < arguments.count(); ++i) {
    check(which[i] >= -1 && which[i] < masks.instance_count, op, ": index[", i, "] is ", which[i],
          ", but there are ", masks.instance_count, " instances");
  }
  Tensor crops = empty_crops(arguments);
  const auto* box = static_cast<const float*>(arguments.boxes.const_data_ptr());
  auto* cells = static_cast<float*>(crops.mutable_data_ptr());
  torch::stable::parallel_for(0, arguments.count(), 1, [&](int64_t first, int64_t last) {
    Cropper cropper(masks, arguments.resolution, soft);
    for (int64_t i = first; i < last; ++i) {
      cropper.crop(which[i], box + i * 4, cells + i * resolution * resolution);
    }
  });
  return crops;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("crop_masks", TORCH_BOX(&detlite::crop_masks));
}
