// Inner loops of RoIAlign and RoIPool, and transposes between memory layouts.
#pragma once

#include "inner_loops.h"
#include "vectors.h"

namespace detlite::DETLITE_ISA {

// ---- RoIAlign

// One bin, for kVectors vectors of channels, which stay in registers during all multiplications.
template <int kVectors, bool kAdd, typename F, typename G, typename T>
inline void resample_block(const WeightedCell<T>* row, const WeightedCell<T>* rows_end,
                           const WeightedCell<T>* columns, const WeightedCell<T>* columns_end,
                           const Window<const F>& source, int64_t channel, G* target) {
  constexpr int lanes = kLanes<T>;
  Vec<T> sums[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (kAdd) sums[v] = load(target + v * lanes);
    else sums[v] = Vec<T>{};
  }
  for (; row != rows_end; ++row) {
    const F* source_row = source.at(row->source, source.first_column) + channel;
    for (const WeightedCell<T>* column = columns; column != columns_end; ++column) {
      const F* cell = source_row + (column->source - source.first_column) * source.column_step;
      const Vec<T> weight = broadcast(row->weight * column->weight);
      for (int v = 0; v < kVectors; ++v) sums[v] = fma(weight, load(cell + v * lanes), sums[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) store(sums[v], target + v * lanes);
}

// The outer loop is over groups of channels, so that cells which neighbouring bins share are still
// in the L1 cache.
template <bool kAdd, typename F, typename G, typename T>
void resample(SparseView<T> rows, SparseView<T> columns, Window<const F> source, Window<G> target,
              int64_t channels) {
  constexpr int lanes = kLanes<T>;
  int64_t c = 0;
  const auto run = [&](auto vectors) {
    constexpr int count = decltype(vectors)::value;
    for (; c + count * lanes <= channels; c += count * lanes) {
      for (int i = 0; i < rows.count; ++i) {
        const SparseRow& row = rows.rows[i];
        for (int j = 0; j < columns.count; ++j) {
          const SparseRow& column = columns.rows[j];
          resample_block<count, kAdd>(rows.cells + row.begin, rows.cells + row.end,
                                      columns.cells + column.begin, columns.cells + column.end,
                                      source, c, target.at(row.target, column.target) + c);
        }
      }
    }
  };
  run(std::integral_constant<int, 4>{});
  run(std::integral_constant<int, 2>{});
  run(std::integral_constant<int, 1>{});
  for (; c < channels; ++c) {
    for (int i = 0; i < rows.count; ++i) {
      const SparseRow& row = rows.rows[i];
      for (int j = 0; j < columns.count; ++j) {
        const SparseRow& column = columns.rows[j];
        G* out = target.at(row.target, column.target) + c;
        T sum = kAdd ? static_cast<T>(*out) : T(0);
        for (int r = row.begin; r < row.end; ++r) {
          for (int k = column.begin; k < column.end; ++k) {
            sum += rows.cells[r].weight * columns.cells[k].weight *
                   static_cast<T>(source.at(rows.cells[r].source, columns.cells[k].source)[c]);
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

// The maximum of one bin that is not empty, starting from its first cell.
template <int kVectors, bool kPlaces, typename F>
inline void max_pool_block(CellRange rows, CellRange columns, int width,
                           const Window<const F>& source, int64_t channel, F* target,
                           [[maybe_unused]] int32_t* place) {
  using T = accumulate_t<F>;
  using I = LaneMask<T>;
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
void max_pool_bins(const CellRange* rows, int row_count, const CellRange* columns, int column_count,
                   int width, Window<const F> source, Window<F> target, Window<int32_t> place,
                   int64_t channels) {
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
          max_pool_block<count, kPlaces>(rows[i], columns[j], width, source, c, out + c,
                                         kPlaces ? where + c : nullptr);
        }
      };
      run(std::integral_constant < int, DETLITE_VECTOR_BYTES == 64 ? 8 : 4 > {});
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
void max_pool(const CellRange* rows, int row_count, const CellRange* columns, int column_count,
              int width, Window<const F> source, Window<F> target, Window<int32_t> place,
              int64_t channels) {
  const auto run = place.data ? max_pool_bins<true, F> : max_pool_bins<false, F>;
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
    // The last block in each direction is shifted to end at the edge. It rewrites equal values.
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

}  // namespace detlite::DETLITE_ISA
