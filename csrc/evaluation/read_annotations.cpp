// Reads the entries of COCO annotation and results files into columns, without an object for each
// entry.
//
// Only files with the exact types of COCO's format are read. For any other file, valid or not, the
// result has no list, and the caller reads the file with a JSON library, which reports errors.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <torch/csrc/stable/library.h>

#include "common/tensors.h"
#include "cpu/run_lengths.h"

namespace detlite {
namespace {

// Bits of the fields that an entry has. The first ones have a column of `integers`; the scores, the
// area and the box have columns of `numbers`.
enum Field {
  kImageId, kCategoryId, kId, kIsCrowd, kNumKeypoints,
  kScore, kArea, kBox,
  kKeypoints, kPolygons, kRunLengths, kText,  // kText: the run lengths were compressed
  kMaskScore,
  kUnknown
};
constexpr int kIntegers = 5, kNumbers = 7;  // score, area, box, mask score

struct Columns {
  std::vector<int64_t> fields, integers, sizes, text_lengths, rings, ring_counts, point_counts;
  std::vector<double> numbers, corners, points;
  std::vector<uint8_t> text;
};

// Reads JSON (RFC 8259). Each method consumes what its name says, and returns false if something
// else follows.
class JsonReader {
 public:
  JsonReader(const char* position, const char* end) : p_(position), end_(end) {}

  const char* position() const { return p_; }
  bool at_end() { return skip_space(), p_ == end_; }

  // Consumes a character, with the white space before it.
  bool take(char expected) {
    skip_space();
    if (p_ == end_ || *p_ != expected) return false;
    ++p_;
    return true;
  }

  char peek() {
    skip_space();
    return p_ == end_ ? '\0' : *p_;
  }

  // A string without escapes, as keys are.
  bool key(const char*& begin, size_t& size) {
    if (!take('"')) return false;
    begin = p_;
    while (p_ != end_ && *p_ != '"') {
      if (*p_ == '\\' || static_cast<uint8_t>(*p_) < ' ') return false;
      ++p_;
    }
    size = p_ - begin;
    return p_ != end_ && ++p_ && take(':');
  }

  bool integer(int64_t& value) {
    skip_space();
    const bool negative = p_ != end_ && *p_ == '-';
    p_ += negative;
    const char* const first = p_;
    value = 0;
    for (; is_digit() && p_ - first < 18; ++p_) value = 10 * value + (*p_ - '0');
    if (negative) value = -value;
    return p_ != first && (*first != '0' || p_ - first == 1) && !is_digit() && !is_any(".eE");
  }

  bool number(double& value) {
    skip_space();
    const char* const start = p_;
    const bool negative = p_ != end_ && *p_ == '-';
    p_ += negative;
    const char* const first = p_;
    uint64_t digits = 0;  // without the point
    read_digits(digits);
    if (p_ == first || (*first == '0' && p_ - first > 1)) return false;
    const char* significant = first;
    int64_t count = p_ - first, exponent = 0;
    if (is_any(".")) {
      const char* const fraction = ++p_;
      read_digits(digits);
      exponent = fraction - p_;
      if (exponent == 0) return false;
      if (*first == '0') {
        for (significant = fraction; significant != p_ && *significant == '0';) ++significant;
        count = 0;
      }
      count += *first == '0' ? p_ - significant : -exponent;
    }
    if (is_any("eE")) {
      ++p_;
      const bool below = is_any("-");
      p_ += below || is_any("+");
      const char* const power_start = p_;
      int64_t power = 0;
      for (; is_digit(); ++p_) power = std::min<int64_t>(10 * power + (*p_ - '0'), 10000);
      if (p_ == power_start) return false;
      exponent += below ? -power : power;
    }
    // 19 digits fit into `digits`.
    if (count > 19 || !scale(digits, exponent, value)) return from_text(start, value);
    if (negative) value = -value;
    return true;
  }

  // Appends the numbers of a list.
  bool numbers(std::vector<double>& values) {
    return items('[', ']', [&] { return number(values.emplace_back()); });
  }

  bool integers(std::vector<int64_t>& values) {
    return items('[', ']', [&] { return integer(values.emplace_back()); });
  }

  // Appends COCO's text of run lengths, in which "\" is the only character that JSON escapes.
  bool run_lengths(std::vector<uint8_t>& text) {
    if (!take('"')) return false;
    const char* const close = find('"', end_);
    if (!close) return false;
    const size_t before = text.size();
    while (const char* escape = find('\\', close)) {
      if (escape + 1 == close || escape[1] != '\\') return false;
      text.insert(text.end(), p_, escape + 1);
      p_ = escape + 2;
    }
    text.insert(text.end(), p_, close);
    p_ = close + 1;
    bool valid = true;
    for (size_t i = before; i < text.size(); ++i) valid &= text[i] >= '0' && text[i] < '0' + 64;
    return valid;
  }

  // Consumes the items of a list or an object; `read_item` consumes one.
  template <typename ReadItem>
  bool items(char open, char close, const ReadItem& read_item) {
    if (!take(open)) return false;
    if (take(close)) return true;
    do {
      if (!read_item()) return false;
    } while (take(','));
    return take(close);
  }

  bool any_value(int depth = 0) {
    switch (peek()) {
      case '"': return any_string();
      case '[': return depth < 64 && items('[', ']', [&] { return any_value(depth + 1); });
      case '{':
        return depth < 64 && items('{', '}', [&] {
          return any_string() && take(':') && any_value(depth + 1);
        });
      case 't': return word("true");
      case 'f': return word("false");
      case 'n': return word("null");
      default:
        double number_;
        return number(number_);
    }
  }

 private:
  void skip_space() {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
  }

  bool is_digit() const { return p_ != end_ && *p_ >= '0' && *p_ <= '9'; }

  // Appends decimal digits to a number, modulo 2^64.
  void read_digits(uint64_t& digits) {
    for (uint64_t eight; end_ - p_ >= 8; p_ += 8) {
      std::memcpy(&eight, p_, 8);  // the first digit is the lowest byte
      constexpr uint64_t ones = 0x0101010101010101;
      // Adding 6 carries bytes above "9" out of 0x30 to 0x3f.
      if (((eight & 0xf0 * ones) | ((eight + 6 * ones) & 0xf0 * ones) >> 4) != 0x33 * ones) break;
      // Join neighbors: eight digits, four numbers of two digits, two of four, one of eight.
      eight = (eight & 0x0f * ones) * (10 * 256 + 1) >> 8;
      eight = (eight & 0x00ff00ff00ff00ff) * (100 * 65536 + 1) >> 16;
      eight = (eight & 0x0000ffff0000ffff) * ((uint64_t{10000} << 32) + 1) >> 32;
      digits = 100000000 * digits + eight;
    }
    for (; is_digit(); ++p_) digits = 10 * digits + (*p_ - '0');
  }

  bool is_any(const char* characters) const {
    if (p_ == end_) return false;
    for (; *characters; ++characters) {
      if (*p_ == *characters) return true;
    }
    return false;
  }

  const char* find(char wanted, const char* end) const {
    return static_cast<const char*>(std::memchr(p_, wanted, end - p_));
  }

  bool word(const char* expected) {
    const size_t size = std::strlen(expected);
    if (static_cast<size_t>(end_ - p_) < size || std::memcmp(p_, expected, size)) return false;
    p_ += size;
    return true;
  }

  bool any_string() {
    if (!take('"')) return false;
    for (; p_ != end_ && *p_ != '"'; ++p_) {
      if (static_cast<uint8_t>(*p_) < ' ') return false;
      if (*p_ != '\\') continue;
      if (++p_ == end_ || !std::memchr("\"\\/bfnrtu", *p_, 9)) return false;
      if (*p_ != 'u') continue;
      for (int digit = 0; digit < 4; ++digit) {
        if (++p_ == end_ || !std::isxdigit(static_cast<uint8_t>(*p_))) return false;
      }
    }
    return p_ != end_ && ++p_;
  }

  // Computes digits * 10^exponent, correctly rounded. Returns false if it would take more than one
  // operation.
  static bool scale(uint64_t digits, int64_t exponent, double& value) {
    static constexpr double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                        1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                        1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    if (digits == 0) return value = 0, true;
    if (digits <= uint64_t{1} << 53 && std::abs(exponent) <= 22) {  // both operands are exact
      value = static_cast<double>(digits);
      value = exponent < 0 ? value / powers[-exponent] : value * powers[exponent];
      return true;
    }
#if defined(__SIZEOF_INT128__) && !defined(_WIN32)
    if (exponent >= 0 || exponent < -19) return false;
    // Divide integers, with at least 62 bits of quotient. A remainder sets the last bit, so that
    // the conversion to double rounds as from the exact quotient.
    uint64_t divisor = static_cast<uint64_t>(powers[-exponent]);
    const int up = __builtin_clzll(digits), divisor_up = __builtin_clzll(divisor);
    const auto dividend = static_cast<unsigned __int128>(digits << up) << 63;
    divisor <<= divisor_up;
    const auto quotient = static_cast<uint64_t>(dividend / divisor);
    const bool rest = static_cast<uint64_t>(dividend) != quotient * divisor;
    value = std::ldexp(static_cast<double>(quotient | rest), divisor_up - up - 63);
    return true;
#else
    return false;
#endif
  }

  bool from_text(const char* start, double& value) const {
    const std::string text(start, p_);
    char* stop;
    value = std::strtod(text.c_str(), &stop);
    // Another decimal point than "." stops early.
    return stop == text.c_str() + text.size() && std::isfinite(value);
  }

  const char* p_;
  const char* end_;
};

// Reads the entries from `start` to the last one that begins before `limit`.
class Chunk {
 public:
  Columns columns;
  const char *start, *limit, *stop = nullptr;  // `stop`: the next entry, or the end of the list
  bool closed = false;                         // the list ends here

  Chunk(const char* first, const char* last) : start(first), limit(last) {}

  // Returns false if an entry is not in COCO's form.
  bool read(const char* end) {
    JsonReader json(start, end);
    // Reserved memory is not used before it is written.
    constexpr int64_t entry_bytes = 100;
    const int64_t entries = (limit - start) / entry_bytes + 1;
    columns.text.reserve(limit - start);
    columns.integers.reserve(kIntegers * entries);
    columns.numbers.reserve(kNumbers * entries);
    columns.sizes.reserve(2 * entries);
    while (true) {
      if (!read_entry(json)) return false;
      closed = json.take(']');
      if (!closed && !json.take(',')) return false;
      if (!closed) json.peek();  // skips white space
      stop = json.position();
      if (closed || stop >= limit) return true;
    }
  }

 private:
  static Field field_of(const char* name, size_t size) {
    const auto is = [&](const char* known) {
      return std::strlen(known) == size && std::memcmp(name, known, size) == 0;
    };
    switch (size) {
      case 2: return is("id") ? kId : kUnknown;
      case 4: return is("bbox") ? kBox : is("area") ? kArea : kUnknown;
      case 5: return is("score") ? kScore : kUnknown;
      case 7: return is("iscrowd") ? kIsCrowd : kUnknown;
      case 8: return is("image_id") ? kImageId : kUnknown;
      case 9: return is("keypoints") ? kKeypoints : kUnknown;
      case 10: return is("mask_score") ? kMaskScore : kUnknown;
      case 11: return is("category_id") ? kCategoryId : kUnknown;
      case 12: return is("segmentation") ? kPolygons : kUnknown;
      case 13: return is("num_keypoints") ? kNumKeypoints : kUnknown;
      default: return kUnknown;
    }
  }

  bool read_entry(JsonReader& json) {
    fields_ = 0;
    std::fill_n(integers_, kIntegers, 0);
    std::fill_n(numbers_, kNumbers, 0.0);
    size_[0] = size_[1] = 0;
    const size_t text = columns.text.size(), rings = columns.rings.size(),
                 points = columns.points.size();
    const bool read = json.items('{', '}', [&] {
      const char* name;
      size_t size;
      return json.key(name, size) && read_field(json, field_of(name, size));
    });
    columns.fields.push_back(fields_);
    columns.integers.insert(columns.integers.end(), integers_, integers_ + kIntegers);
    columns.numbers.insert(columns.numbers.end(), numbers_, numbers_ + kNumbers);
    columns.sizes.insert(columns.sizes.end(), size_, size_ + 2);
    columns.text_lengths.push_back(columns.text.size() - text);
    columns.ring_counts.push_back(columns.rings.size() - rings);
    columns.point_counts.push_back(columns.points.size() - points);
    return read;
  }

  bool read_field(JsonReader& json, Field field) {
    if (field == kUnknown) return json.any_value();
    if (field == kPolygons && json.peek() == '{') field = kRunLengths;
    constexpr int64_t masks = 1 << kPolygons | 1 << kRunLengths;
    const int64_t bit = 1 << field;
    if (fields_ & bit || (bit & masks && fields_ & masks)) return false;  // the name occurs twice
    fields_ |= bit;
    switch (field) {
      case kScore: return json.number(numbers_[0]);
      case kArea: return json.number(numbers_[1]);
      case kMaskScore: return json.number(numbers_[6]);
      case kBox: {
        int n = 0;
        return json.items('[', ']', [&] { return n < 4 && json.number(numbers_[2 + n++]); }) &&
               n == 4;
      }
      case kKeypoints: return json.numbers(columns.points);
      case kPolygons:
        return json.items('[', ']', [&] {
          const size_t before = columns.corners.size();
          if (!json.numbers(columns.corners)) return false;
          columns.rings.push_back(columns.corners.size() - before);
          return true;
        });
      case kRunLengths: return read_run_lengths(json);
      default: return json.integer(integers_[field]);
    }
  }

  bool read_run_lengths(JsonReader& json) {
    bool has_size = false, has_counts = false;
    counts_.clear();
    const bool read = json.items('{', '}', [&] {
      const char* name;
      size_t length;
      if (!json.key(name, length)) return false;
      const std::string key(name, length);
      if (key == "size" && !has_size) {
        has_size = true;
        int n = 0;
        return json.items('[', ']', [&] { return n < 2 && json.integer(size_[n++]); }) && n == 2;
      }
      if (key == "counts" && !has_counts) {
        has_counts = true;
        if (json.peek() == '[') return json.integers(counts_);
        fields_ |= 1 << kText;
        return json.run_lengths(columns.text);
      }
      return key != "size" && key != "counts" && json.any_value();
    });
    const int64_t limit = int64_t{1} << 31;
    if (!read || !has_size || !has_counts || std::min(size_[0], size_[1]) < 1 ||
        std::max(size_[0], size_[1]) >= limit) {
      return false;
    }
    if (fields_ & 1 << kText) return true;
    int64_t left = size_[0] * size_[1];
    for (const int64_t run : counts_) {
      if (run < 0 || run > left) return false;
      left -= run;
    }
    const std::string text = encode_runs(counts_);
    columns.text.insert(columns.text.end(), text.begin(), text.end());
    return left == 0;
  }

  int64_t fields_ = 0, integers_[kIntegers], size_[2];
  double numbers_[kNumbers];
  std::vector<int64_t> counts_;
};

// Returns the start of an entry that begins after `position`, or `end`. It may be within a string.
const char* next_entry(const char* position, const char* end) {
  const auto skip_space = [end](const char* p) {
    while (p != end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) ++p;
    return p;
  };
  while ((position = static_cast<const char*>(std::memchr(position, '}', end - position)))) {
    const char* next = skip_space(++position);
    if (next == end || *next != ',') continue;
    next = skip_space(next + 1);
    if (next != end && *next == '{') return next;
  }
  return end;
}

// Reads the entries of the list whose "[" is before `start`. Returns the end of the list, or nullptr
// if it is not in COCO's form.
const char* read_list(const char* start, const char* end, int64_t chunk_bytes,
                      std::vector<Chunk>& chunks) {
  chunks.clear();
  JsonReader json(start, end);
  if (json.take(']')) return json.position();
  json.peek();
  for (const char* first = json.position(); first != end;) {
    const char* limit = end - first > chunk_bytes ? next_entry(first + chunk_bytes, end) : end;
    chunks.emplace_back(first, limit);
    first = limit;
  }
  std::vector<char> read(chunks.size());
  torch::stable::parallel_for(0, chunks.size(), 1, [&](int64_t begin, int64_t last) {
    for (int64_t i = begin; i < last; ++i) read[i] = chunks[i].read(end);
  });
  // A chunk is valid if the one before it ends at its start, and that one is valid.
  for (size_t i = 0; i < chunks.size() && read[i]; ++i) {
    if (chunks[i].closed) {
      chunks.erase(chunks.begin() + i + 1, chunks.end());
      return chunks[i].stop;
    }
    if (i + 1 == chunks.size() || chunks[i].stop != chunks[i + 1].start) break;
  }
  return nullptr;
}

template <typename T>
Tensor join(const Tensor& like, ScalarType type, const std::vector<Chunk>& chunks,
            std::vector<T> Columns::* column, int64_t width = 0) {
  int64_t size = 0;
  for (const Chunk& chunk : chunks) size += (chunk.columns.*column).size();
  const Tensor joined =
      width ? empty(like, type, {size / width, width}) : empty(like, type, {size});
  T* out = mutable_data<T>(joined);
  for (const Chunk& chunk : chunks) {
    out = std::copy((chunk.columns.*column).begin(), (chunk.columns.*column).end(), out);
  }
  return joined;
}

std::vector<Tensor> read_annotations(const Tensor& text, int64_t chunk_bytes) {
  constexpr const char* op = "read_annotations";
  check(text.dim() == 1, op, ": text must have one dimension, got ", Shape{text});
  check_dtype(op, "text", text, ScalarType::Byte);
  check(chunk_bytes > 0, op, ": chunk_bytes must be positive, got ", chunk_bytes);
  const Tensor dense = torch::stable::contiguous(text);
  const char* const begin = reinterpret_cast<const char*>(data<uint8_t>(dense));
  const char* const end = begin + text.size(0);
  std::vector<Chunk> chunks;
  const char *first = nullptr, *last = nullptr;  // of the list
  // Consumes the list.
  const auto read = [&](JsonReader& json) {
    if (first || !json.take('[')) return false;
    first = json.position() - 1;
    last = read_list(first + 1, end, chunk_bytes, chunks);
    // A chunk may have started within a string or a nested object.
    if (!last) last = read_list(first + 1, end, end - begin, chunks);
    if (last) json = JsonReader(last, end);
    return last != nullptr;
  };
  JsonReader json(begin, end);
  const bool valid =
      (json.peek() == '[' ? read(json) : json.items('{', '}', [&] {
        const char* name;
        size_t size;
        if (!json.key(name, size)) return false;
        return std::string(name, size) == "annotations" ? read(json) : json.any_value();
      })) && json.at_end() && first;
  if (!valid) chunks.clear();
  const Tensor list = empty(text, ScalarType::Long, {2});
  mutable_data<int64_t>(list)[0] = valid ? first - begin : -1;
  mutable_data<int64_t>(list)[1] = valid ? last - begin : -1;
  constexpr ScalarType integer = ScalarType::Long, real = ScalarType::Double;
  return {
      list,
      join(text, integer, chunks, &Columns::fields),
      join(text, integer, chunks, &Columns::integers, kIntegers),
      join(text, real, chunks, &Columns::numbers, kNumbers),
      join(text, integer, chunks, &Columns::sizes, 2),
      join(text, ScalarType::Byte, chunks, &Columns::text),
      join(text, integer, chunks, &Columns::text_lengths),
      join(text, real, chunks, &Columns::corners),
      join(text, integer, chunks, &Columns::rings),
      join(text, integer, chunks, &Columns::ring_counts),
      join(text, real, chunks, &Columns::points),
      join(text, integer, chunks, &Columns::point_counts),
  };
}

}  // namespace
}  // namespace detlite

STABLE_TORCH_LIBRARY_FRAGMENT(detlite, m) {
  m.def("read_annotations(Tensor text, int chunk_bytes) -> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(detlite, CPU, m) {
  m.impl("read_annotations", TORCH_BOX(&detlite::read_annotations));
}
