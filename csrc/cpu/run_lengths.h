// Run lengths of masks as COCO's text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "common/tensors.h"

namespace detlite {

// Encodes run lengths as COCO's text. From the fourth count on, the difference to the count before
// the previous one is stored. Each number is written as groups of five bits, lowest first, with a
// sixth bit if more groups follow, and an offset that makes the characters printable.
inline std::string encode_runs(const std::vector<int64_t>& counts) {
  std::string text;
  for (size_t i = 0; i < counts.size(); ++i) {
    int64_t value = i > 2 ? counts[i] - counts[i - 2] : counts[i];
    for (bool more = true; more;) {
      int64_t group = value & 0x1f;
      value >>= 5;
      more = group & 0x10 ? value != -1 : value != 0;
      if (more) group |= 0x20;
      text.push_back(static_cast<char>(group + 48));
    }
  }
  return text;
}

// The boundaries of the runs of a mask: flat column-major positions, in increasing order.
class RunBoundaries {
 public:
  void clear() { positions_.clear(); }

  // Adds a boundary that is not before the last one. Two at the same position cancel: the runs
  // before and after them are one run.
  void add(int64_t position) {
    if (!positions_.empty() && positions_.back() == position) positions_.pop_back();
    else positions_.push_back(position);
  }

  const std::vector<int64_t>& positions() const { return positions_; }

  // Encodes the runs of an image of `pixels` pixels.
  std::string encode(int64_t pixels) {
    if (!positions_.empty() && positions_.back() == pixels) positions_.pop_back();
    counts_.clear();
    int64_t last = 0;
    for (const int64_t position : positions_) {
      counts_.push_back(position - last);
      last = position;
    }
    counts_.push_back(pixels - last);
    return encode_runs(counts_);
  }

 private:
  std::vector<int64_t> positions_, counts_;
};

// Concatenates the texts of N masks: bytes uint8 [V], and where each text ends int64 [N].
inline std::tuple<Tensor, Tensor> join_texts(const std::vector<std::string>& texts,
                                             const Tensor& like) {
  int64_t bytes = 0;
  for (const std::string& text : texts) bytes += static_cast<int64_t>(text.size());
  const Tensor joined = empty(like, ScalarType::Byte, {bytes});
  const Tensor ends = empty(like, ScalarType::Long, {static_cast<int64_t>(texts.size())});
  char* const begin = mutable_data<char>(joined);
  char* byte = begin;
  int64_t* end = mutable_data<int64_t>(ends);
  for (const std::string& text : texts) {
    byte = std::copy(text.begin(), text.end(), byte);
    *end++ = byte - begin;
  }
  return {joined, ends};
}

}  // namespace detlite
