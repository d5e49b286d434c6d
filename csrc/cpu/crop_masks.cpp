// Cropping of ground-truth masks to boxes on the CPU, without a bitmap of the whole mask. Polygons
// are rasterized at the resolution of the crop. Run lengths are decoded only under the box, with
// one bit per pixel.
#include <algorithm>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "axis_resampler.h"
#include "common/crop_masks.h"

namespace detlite {
namespace {

constexpr int kWord = 64;

// Bit i of the result is the parity of bits 0 to i.
uint64_t prefix_parity(uint64_t bits) {
  for (int shift = 1; shift < kWord; shift *= 2) bits ^= bits << shift;
  return bits;
}

// A bitmap stored by columns. Each column has a whole number of words.
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

  // Turns marked edges into a filled column: the bits change at every edge. The bits above the
  // first edge become `first`.
  void fill_between_edges(int x, bool first) {
    uint64_t above = first ? ~uint64_t{0} : 0;
    for (int w = 0; w < words_; ++w) {
      const uint64_t bits = prefix_parity(column(x)[w]) ^ above;
      column(x)[w] = bits;
      above = bits >> (kWord - 1) ? ~uint64_t{0} : 0;
    }
  }

  // Updates `any` and `all` with the bits of rows [begin, end).
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
        // The row after the last needs no mark: every column is crossed an even number of times.
        cross_columns(from, to, resolution_, resolution_, [this](int column, int row) {
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

  // RoIAlign of the bitmap, with sums in the same order as in the RoIAlign kernel.
  void crop_runs(int64_t piece, const NearestAxis& row_map, const NearestAxis& column_map,
                 const float* box, float* cells) {
    const auto axis = [&](float low, float end, const NearestAxis& frame) {
      return bins_from_cells(align_axis(low, end, 1.0f, resolution_, 0, !soft_), resolution_,
                             static_cast<int>(frame.target));
    };
    const AxisResampler<float> rows = axis(box[1], box[3], row_map);
    const AxisResampler<float> columns = axis(box[0], box[2], column_map);
    decode(piece, row_map, column_map, rows.touched, columns.touched);
    for (const SparseRow& row : rows.rows) {
      sum_bins(rows, row, columns, cells);
      cells += resolution_;
    }
  }

  // Sets mask_ to the pixels that the box touches.
  void decode(int64_t piece, const NearestAxis& row_map, const NearestAxis& column_map,
              CellRange rows, CellRange columns) {
    const double* begin = masks_.values + masks_.pieces[piece];
    const double* end = masks_.values + masks_.pieces[piece + 1];
    const int height = rows.end - rows.begin, width = columns.end - columns.begin;
    mask_.clear(width, height);
    if (height == 0 || width == 0) return;
    const int64_t top = std::min(row_map(rows.begin), row_map(rows.end - 1));
    const int64_t bottom = std::max(row_map(rows.begin), row_map(rows.end - 1));
    // above_[i] is the number of pixels above source row top + i.
    above_.assign(bottom - top + 2, 0);
    for (int y = rows.begin; y < rows.end; ++y) ++above_[row_map(y) - top + 1];
    for (size_t i = 1; i < above_.size(); ++i) above_[i] += above_[i - 1];

    int64_t last = -1;
    for (int x = 0; x < width; ++x) {
      const int64_t column = column_map(columns.begin + x), start = column * row_map.source + top;
      if (column == last) {
        std::copy_n(mask_.column(x - 1), mask_.words(), mask_.column(x));
        continue;
      }
      last = column;
      const double* first = std::upper_bound(begin, end, static_cast<double>(start));
      const double* boundary = first;
      for (; boundary != end && *boundary <= static_cast<double>(start + bottom - top);
           ++boundary) {
        const double source = std::ceil(*boundary - static_cast<double>(start));
        if (!(source > 0)) continue;  // boundaries out of order, or NaN
        const int edge = above_[static_cast<int64_t>(source)];
        mask_.flip(x, row_map.flip ? height - edge : edge);
      }
      mask_.fill_between_edges(x, ((row_map.flip ? boundary : first) - begin) % 2);
    }
  }

  // RoIAlign's sums over one row of bins. The order of each sum is fixed; the processor works on
  // several bins in parallel.
  void sum_bins(const AxisResampler<float>& rows, const SparseRow& row,
                const AxisResampler<float>& columns, float* sums) {
    if (row.begin == row.end) return;
    const int top = rows.touched.begin, left = columns.touched.begin;
    const int first = rows.cells[row.begin].source - top,
              last = rows.cells[row.end - 1].source - top + 1;
    mixed_.clear();
    for (int j = 0; j < resolution_; ++j) {
      const SparseRow& column = columns.rows[j];
      bool any = false, all = true;
      for (int k = column.begin; k < column.end; ++k) {
        mask_.inspect(columns.cells[k].source - left, first, last, any, all);
      }
      if (!any) continue;
      // Most bins are completely inside the mask. Weights add up to one except at the image border.
      const bool inside = all && sum(rows, row) * sum(columns, column) > 0.75f;
      if (inside && !soft_) sums[j] = 1;
      else mixed_.push_back(j);
    }
    for (int r = row.begin; r < row.end; ++r) {
      const WeightedCell<float>& down = rows.cells[r];
      for (const int j : mixed_) {
        float value = sums[j];
        for (int k = columns.rows[j].begin; k < columns.rows[j].end; ++k) {
          const WeightedCell<float>& along = columns.cells[k];
          value +=
              mask_.at(along.source - left, down.source - top) ? down.weight * along.weight : 0.0f;
        }
        sums[j] = value;
      }
    }
    if (soft_) return;
    for (const int j : mixed_) sums[j] = sums[j] >= 0.5f;
  }

  static float sum(const AxisResampler<float>& axis, const SparseRow& line) {
    float weights = 0;
    for (int i = line.begin; i < line.end; ++i) weights += axis.cells[i].weight;
    return weights;
  }

  MaskArrays masks_;
  int resolution_;
  bool soft_;
  BitColumns mask_, edges_;
  std::vector<int> above_, mixed_;
};

void check_offsets(const char* op, const char* name, const int64_t* offsets, int64_t count,
                   const char* target, int64_t max) {
  for (int64_t i = 0; i <= count; ++i) {
    check(offsets[i] >= (i ? offsets[i - 1] : 0) && offsets[i] <= max, op, ": ", name,
          " must increase from 0 to the ", max, " ", target, ", got ", offsets[i], " at place ", i);
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
      check(last - first == 1, op, ": instance ", i,
            " is run lengths and must have one piece, got ", last - first);
      check(rows_of(frame).is_valid() && columns_of(frame).is_valid(), op, ": frames[", i,
            "] must have sides from 1 to ", kMaxSourceSide, ", and from 1 to ", kMaxTargetSide,
            " in the network's input");
    }
  }
}

Tensor crop_masks(const Tensor& values, const Tensor& pieces, const Tensor& instances,
                  const Tensor& frames, const Tensor& index, const Tensor& boxes,
                  int64_t resolution, bool soft) {
  constexpr const char* op = "crop_masks";
  const CropCall call =
      check_crop_masks(values, pieces, instances, frames, index, boxes, resolution, soft);
  const MaskArrays masks = call.masks();
  check_masks(op, masks, soft);
  const int64_t* selected = data<int64_t>(call.index);
  for (int64_t i = 0; i < call.count(); ++i) {
    check(selected[i] >= -1 && selected[i] < masks.instance_count, op, ": index[", i, "] is ",
          selected[i], ", but there are ", masks.instance_count, " instances");
  }
  const float* box = data<float>(call.boxes);
  float* cells = mutable_data<float>(call.crops);
  torch::stable::parallel_for(0, call.count(), 1, [&](int64_t first, int64_t last) {
    Cropper cropper(masks, call.resolution, soft);
    for (int64_t i = first; i < last; ++i) {
      cropper.crop(selected[i], box + i * 4, cells + i * resolution * resolution);
    }
  });
  return call.crops;
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def(
      "crop_masks(Tensor values, Tensor pieces, Tensor instances, Tensor frames, Tensor index, "
      "Tensor boxes, int resolution, bool soft) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("crop_masks", TORCH_BOX(&detlite::crop_masks));
}
