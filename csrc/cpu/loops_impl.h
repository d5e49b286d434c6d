// The inner loops, written once; see loops.h for what each does and simd.h for how it is included.
#pragma once

#include "focal_loops_impl.h"
#include "loops.h"
#include "simd.h"

namespace detlite::DETLITE_ISA {

// ---- RoIAlign

// kVectors vectors of channels stay in registers while the taps pass by.
template <int kVectors, bool kAdd, typename F, typename G, typename T>
inline void resample_block(const Tap<T>* row, const Tap<T>* rows_end, const Tap<T>* columns,
                           const Tap<T>* columns_end, const Window<const F>& source,
                           int64_t channel, G* target) {
  constexpr int lanes = kLanes<T>;
  Vec<T> sums[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (kAdd) sums[v] = load(target + v * lanes);
    else sums[v] = Vec<T>{};
  }
  for (; row != rows_end; ++row) {
    const F* line = source.at(row->from, source.first_column) + channel;
    for (const Tap<T>* column = columns; column != columns_end; ++column) {
      const F* cell = line + (column->from - source.first_column) * source.column_step;
      const Vec<T> weight = broadcast(row->weight * column->weight);
      for (int v = 0; v < kVectors; ++v) sums[v] = fma(weight, load(cell + v * lanes), sums[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) store(sums[v], target + v * lanes);
}

// Channels are taken a few vectors at a time through all bins, so that the cells which neighbouring
// bins share are still in the first-level cache.
template <bool kAdd, typename F, typename G, typename T>
void resample(AxisView<T> rows, AxisView<T> columns, Window<const F> source, Window<G> target,
              int64_t channels) {
  constexpr int lanes = kLanes<T>;
  int64_t c = 0;
  const auto run = [&](auto vectors) {
    constexpr int count = decltype(vectors)::value;
    for (; c + count * lanes <= channels; c += count * lanes) {
      for (int i = 0; i < rows.count; ++i) {
        const Line& row = rows.lines[i];
        for (int j = 0; j < columns.count; ++j) {
          const Line& column = columns.lines[j];
          resample_block<count, kAdd>(rows.taps + row.begin, rows.taps + row.end,
                                      columns.taps + column.begin, columns.taps + column.end,
                                      source, c, target.at(row.to, column.to) + c);
        }
      }
    }
  };
  run(std::integral_constant<int, 4>{});
  run(std::integral_constant<int, 2>{});
  run(std::integral_constant<int, 1>{});
  for (; c < channels; ++c) {
    for (int i = 0; i < rows.count; ++i) {
      const Line& row = rows.lines[i];
      for (int j = 0; j < columns.count; ++j) {
        const Line& column = columns.lines[j];
        G* out = target.at(row.to, column.to) + c;
        T sum = kAdd ? static_cast<T>(*out) : T(0);
        for (int r = row.begin; r < row.end; ++r) {
          for (int k = column.begin; k < column.end; ++k) {
            sum += rows.taps[r].weight * columns.taps[k].weight *
                   static_cast<T>(source.at(rows.taps[r].from, columns.taps[k].from)[c]);
          }
        }
        *out = static_cast<G>(sum);
      }
    }
  }
}

// ---- RoIPool

inline void store_places(Vec<int32_t> places, int32_t* to) { store(places, to); }
inline void store_places(Vec<int64_t> places, int32_t* to) {
  for (int i = 0; i < kLanes<int64_t>; ++i) to[i] = static_cast<int32_t>(places[i]);
}

// Starts below every number, so that the first cell wins whatever it holds: no number is larger
// than NaN, and place -1 marks that nothing was seen.
template <int kVectors, bool kPlaces, typename F>
inline void largest_block(CellRange rows, CellRange columns, int width,
                          const Window<const F>& source, int64_t channel, F* target,
                          [[maybe_unused]] int32_t* place) {
  using T = accumulate_t<F>;
  using I = Index<T>;
  constexpr int lanes = kLanes<T>;
  Vec<T> best[kVectors];
  [[maybe_unused]] Vec<I> places[kVectors];
  const F* first = source.at(rows.begin, columns.begin) + channel;
  for (int v = 0; v < kVectors; ++v) {
    best[v] = load(first + v * lanes);
    if constexpr (kPlaces) places[v] = broadcast(I(rows.begin * width + columns.begin));
  }
  for (int y = rows.begin; y < rows.end; ++y) {
    const F* cell = source.at(y, columns.begin) + channel;
    for (int x = columns.begin; x < columns.end; ++x, cell += source.column_step) {
      [[maybe_unused]] const Vec<I> here = broadcast(I(y * width + x));
      for (int v = 0; v < kVectors; ++v) {
        const Vec<T> value = load(cell + v * lanes);
        const auto larger = (value > best[v]) | (value != value);
        best[v] = larger ? value : best[v];
        if constexpr (kPlaces) places[v] = larger ? here : places[v];
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    store(best[v], target + v * lanes);
    if constexpr (kPlaces) store_places(places[v], place + v * lanes);
  }
}

template <bool kPlaces, typename F>
void largest_of_bins(const CellRange* rows, int row_count, const CellRange* columns,
                     int column_count, int width, Window<const F> source, Window<F> target,
                     Window<int32_t> place, int64_t channels) {
  using T = accumulate_t<F>;
  constexpr int lanes = kLanes<T>;
  for (int i = 0; i < row_count; ++i) {
    for (int j = 0; j < column_count; ++j) {
      F* out = target.at(i, j);
      [[maybe_unused]] int32_t* where = kPlaces ? place.at(i, j) : nullptr;
      if (rows[i].begin >= rows[i].end || columns[j].begin >= columns[j].end) {
        for (int64_t c = 0; c < channels; ++c) {
          out[c] = static_cast<F>(0.0f);
          if constexpr (kPlaces) where[c] = -1;
        }
        continue;
      }
      int64_t c = 0;
      const auto run = [&](auto vectors) {
        constexpr int count = decltype(vectors)::value;
        for (; c + count * lanes <= channels; c += count * lanes) {
          largest_block<count, kPlaces>(rows[i], columns[j], width, source, c, out + c,
                                        kPlaces ? where + c : nullptr);
        }
      };
      run(std::integral_constant<int, DETLITE_VECTOR_BYTES == 64 ? 8 : 4>{});
      run(std::integral_constant<int, 1>{});
      for (; c < channels; ++c) {
        T best = static_cast<T>(source.at(rows[i].begin, columns[j].begin)[c]);
        [[maybe_unused]] int32_t place_of_best = rows[i].begin * width + columns[j].begin;
        for (int y = rows[i].begin; y < rows[i].end; ++y) {
          for (int x = columns[j].begin; x < columns[j].end; ++x) {
            const T value = static_cast<T>(source.at(y, x)[c]);
            if (!(value > best || value != value)) continue;
            best = value;
            place_of_best = y * width + x;
          }
        }
        out[c] = static_cast<F>(best);
        if constexpr (kPlaces) where[c] = place_of_best;
      }
    }
  }
}

template <typename F>
void largest(const CellRange* rows, int row_count, const CellRange* columns, int column_count,
             int width, Window<const F> source, Window<F> target, Window<int32_t> place,
             int64_t channels) {
  const auto run = place.data ? largest_of_bins<true, F> : largest_of_bins<false, F>;
  run(rows, row_count, columns, column_count, width, source, target, place, channels);
}

// ---- Layouts

template <typename From, typename To>
inline void transpose_block(const From* source, int64_t source_step, To* target,
                            int64_t target_step) {
  Vec<float> square[kLanes<float>];
  const auto bits = [](auto vector) { return bit_cast<Vec<float>>(vector); };
  for (int i = 0; i < kLanes<float>; ++i) square[i] = bits(load(source + i * source_step));
  transpose_square(square);
  for (int i = 0; i < kLanes<float>; ++i) {
    if constexpr (std::is_same_v<To, int32_t>) {
      store(bit_cast<Vec<int32_t>>(square[i]), target + i * target_step);
    } else {
      store(square[i], target + i * target_step);
    }
  }
}

template <typename From, typename To>
void transpose(const From* source, int64_t source_step, int64_t rows, int64_t columns, To* target,
               int64_t target_step) {
  constexpr int64_t side = kLanes<float>;
  constexpr bool wide = std::is_same_v<From, double> || std::is_same_v<To, double>;
  if (wide || rows < side || columns < side) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        target[j * target_step + i] = static_cast<To>(source[i * source_step + j]);
      }
    }
    return;
  }
  if constexpr (!wide) {
    // The last block of each direction is moved back to end at the edge: what it repeats is equal.
    for (int64_t i = 0; i < rows; i += side) {
      const int64_t row = i + side <= rows ? i : rows - side;
      for (int64_t j = 0; j < columns; j += side) {
        const int64_t column = j + side <= columns ? j : columns - side;
        transpose_block(source + row * source_step + column, source_step,
                        target + column * target_step + row, target_step);
      }
    }
  }
}

// ---- Non-maximum suppression

template <typename V>
inline V larger_of(V a, V b) {
  return a > b ? a : b;
}
template <typename V>
inline V smaller_of(V a, V b) {
  return a < b ? a : b;
}

bool overlaps_any(const BoxArrays& boxes, int64_t count, const float* box, float threshold) {
  using V = Vec<float>;
  const V x1 = broadcast(box[0]), y1 = broadcast(box[1]);
  const V x2 = broadcast(box[2]), y2 = broadcast(box[3]);
  const V area = broadcast((box[2] - box[0]) * (box[3] - box[1]));
  const V limit = broadcast(threshold), zero{};
  // A product is cheaper than the quotient that decides; a little below the threshold it can only
  // let too many pass.
  const V nearly = broadcast(threshold * (1 - 1e-6f));
  for (int64_t i = 0; i < count; i += kLanes<float>) {
    const V width = smaller_of(load(boxes.x2 + i), x2) - larger_of(load(boxes.x1 + i), x1);
    const V height = smaller_of(load(boxes.y2 + i), y2) - larger_of(load(boxes.y1 + i), y1);
    const V intersection = larger_of(width, zero) * larger_of(height, zero);
    const V together = load(boxes.area + i) + area - intersection;
    if (lane_bits(intersection >= together * nearly) &&
        lane_bits(intersection / together > limit)) {
      return true;
    }
  }
  return false;
}

// ---- Matching

// One of the truth in all lanes.
struct SameBox {
  Vec<float> x1, y1, x2, y2, area;

  SameBox(const BoxArrays& boxes, int64_t at)
      : x1(broadcast(boxes.x1[at])),
        y1(broadcast(boxes.y1[at])),
        x2(broadcast(boxes.x2[at])),
        y2(broadcast(boxes.y2[at])),
        area(broadcast(boxes.area[at])) {}

  // Calls body with the overlaps of the boxes from `first` on, unless none of them has any. Where
  // there is none, or NaN, the overlap compares as zero or NaN does.
  template <typename Body>
  void overlaps(const BoxArrays& boxes, int64_t first, Body&& body) const {
    const Vec<float> zero{};
    const Vec<float> width =
        smaller_of(load(boxes.x2 + first), x2) - larger_of(load(boxes.x1 + first), x1);
    const Vec<float> height =
        smaller_of(load(boxes.y2 + first), y2) - larger_of(load(boxes.y1 + first), y1);
    if (!lane_bits((width > zero) & (height > zero))) return;
    const Vec<float> intersection = larger_of(width, zero) * larger_of(height, zero);
    body(intersection / (area + load(boxes.area + first) - intersection));
  }
};

// The smallest and largest of kMatchBlock numbers, NaN left out.
inline float smallest(const float* values) {
  float result = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kMatchBlock; ++i) result = values[i] < result ? values[i] : result;
  return result;
}
inline float largest_number(const float* values) {
  float result = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < kMatchBlock; ++i) result = values[i] > result ? values[i] : result;
  return result;
}

void match_block(const BoxArrays& candidates, const BoxArrays& truth, int64_t count, float* iou,
                 int32_t* index, float* highest) {
  using V = Vec<float>;
  constexpr int lanes = kLanes<float>;
  // Only what meets the smallest box around all candidates can overlap any.
  const V x1 = broadcast(smallest(candidates.x1)), y1 = broadcast(smallest(candidates.y1));
  const V x2 = broadcast(largest_number(candidates.x2));
  const V y2 = broadcast(largest_number(candidates.y2));
  for (int64_t first = 0; first < count; first += lanes) {
    const auto meets = (load(truth.x1 + first) < x2) & (load(truth.x2 + first) > x1) &
                       (load(truth.y1 + first) < y2) & (load(truth.y2 + first) > y1);
    for (uint32_t left = lane_bits(meets); left; left &= left - 1) {
      const int64_t g = first + __builtin_ctz(left);
      const SameBox box(truth, g);
      const Vec<int32_t> number = broadcast(static_cast<int32_t>(g));
      for (int c = 0; c < kMatchBlock; c += lanes) {
        box.overlaps(candidates, c, [&](V overlap) {
          const V before = load(iou + c);
          const auto better = overlap > before;
          store(better ? overlap : before, iou + c);
          store(better ? number : load(index + c), index + c);
          if (!lane_bits(overlap > broadcast(highest[g]))) return;
          for (int i = 0; i < lanes; ++i) {
            if (overlap[i] > highest[g]) highest[g] = overlap[i];
          }
        });
      }
    }
  }
}

void mark_equal(const BoxArrays& candidates, int64_t count, const BoxArrays& box, float iou,
                bool* marks) {
  const SameBox same(box, 0);
  for (int64_t c = 0; c < count; c += kLanes<float>) {
    same.overlaps(candidates, c, [&](Vec<float> overlap) {
      for (uint32_t left = lane_bits(overlap == broadcast(iou)); left; left &= left - 1) {
        marks[c + __builtin_ctz(left)] = true;
      }
    });
  }
}

// ---- Pasting masks

uint64_t threshold_row(const float* upper, float upper_weight, const float* lower,
                       float lower_weight, float threshold) {
  const Vec<float> weights[2] = {broadcast(upper_weight), broadcast(lower_weight)};
  const Vec<float> limit = broadcast(threshold);
  uint64_t bits = 0;
  for (int x = 0; x < 64; x += kLanes<float>) {
    const Vec<float> value = load(upper + x) * weights[0] + load(lower + x) * weights[1];
    bits |= static_cast<uint64_t>(lane_bits(value >= limit)) << x;
  }
  return bits;
}

// ---- Enlarging heat maps

float blend_rows(const float* const* rows, const float* weights, int64_t count, float* result) {
  using V = Vec<float>;
  constexpr int lanes = kLanes<float>;
  const auto blend = [&](auto at) {
    return ((weights[0] * at(rows[0]) + weights[1] * at(rows[1])) + weights[2] * at(rows[2])) +
           weights[3] * at(rows[3]);
  };
  float highest = -std::numeric_limits<float>::infinity();
  V highest_lanes = broadcast(highest);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V value = blend([i](const float* row) { return load(row + i); });
    store(value, result + i);
    highest_lanes = larger_of(value, highest_lanes);
  }
  for (int lane = 0; lane < lanes; ++lane) highest = larger_of(highest, highest_lanes[lane]);
  for (; i < count; ++i) {
    result[i] = blend([i](const float* row) { return row[i]; });
    highest = larger_of(highest, result[i]);
  }
  return highest;
}

// ---- All together

template <typename F>
constexpr FeatureLoops<F> feature_loops() {
  using T = accumulate_t<F>;
  return {resample<false, F, F, T>, resample<true, F, T, T>, largest<F>,
          transpose<F, T>,          transpose<T, F>,         convert<T, F>,
          focal_loss<F>,            focal_gradient<F>};
}

extern const Loops table;
const Loops table = {
    feature_loops<double>(),     feature_loops<float>(),         feature_loops<c10::Half>(),
    feature_loops<c10::BFloat16>(), transpose<int32_t, int32_t>, overlaps_any,
    match_block,                 mark_equal,                     threshold_row,
    blend_rows,
};

}  // namespace detlite::DETLITE_ISA
