// Raw delimited text: lines into fields, fields into numbers.
//
// A chunk holds whole lines and ends with a line break. Threads take ranges of it that begin at a
// line; each stops at its first bad line, and the first of these in the order of the file is the
// chunk's problem, so the same line is reported whatever the number of threads.
#include "canonical.h"
#include "codes.h"

#include <charconv>
#include <limits>
#include <string>

namespace hotrows {
namespace {

using Problem = TextProblem;

struct Layout {
  char delimiter;
  bool quoted;            // whether a field may stand in double quotes
  int64_t num_columns;    // fields that every line must have
  const int32_t* wanted;  // [num_columns], the column's place in the output, or -1
  uint8_t* changing;      // by place, set where the canonical text of a field may be another
};

struct Found {
  Problem problem = Problem::none;
  int64_t row = 0, column = 0;
};

// Reads a field in double quotes, which starts at `p`, and writes its value over itself: a doubled
// quote becomes one. Returns where the field ends, at a delimiter or line break.
char* unquote(char* p, char delimiter, uint32_t* length, Problem* problem) {
  char* const value = p;
  char* to = p;
  for (++p; *p != '\n'; ++p) {
    if (*p == '"' && *++p != '"') {
      *length = static_cast<uint32_t>(to - value);
      char* end = p;
      if (*end == '\r' && end[1] == '\n') ++end;
      if (*end != delimiter && *end != '\n') *problem = Problem::after_quote;
      return end;
    }
    *to++ = *p;
  }
  *problem = Problem::unclosed;
  return p;
}

// Cuts one line, which starts at `p`, into the fields of row `row`; returns the start of the next.
char* cut_line(char* p, char* text, const Layout& layout, int64_t row, int64_t num_rows,
               uint32_t* starts, uint32_t* lengths, Found* found) {
  const char delimiter = layout.delimiter;
  for (int64_t column = 0;; ++column) {
    char* const start = p;
    uint32_t length;
    if (layout.quoted && *p == '"') {
      Problem problem = Problem::none;
      p = unquote(p, delimiter, &length, &problem);
      if (problem != Problem::none) {
        *found = {problem, row, column};
        return p;
      }
    } else {
      while (*p != delimiter && *p != '\n') ++p;
      length = static_cast<uint32_t>(p - start);
      if (*p == '\n' && length > 0 && p[-1] == '\r') --length;
    }
    const int32_t place = column < layout.num_columns ? layout.wanted[column] : -1;
    if (place >= 0) {
      CHECK(row >= 0 && row < num_rows && place < layout.num_columns, row, num_rows, place);
      CHECK(start >= text && start + length <= p, row, column, length);
      starts[place * num_rows + row] = static_cast<uint32_t>(start - text);
      lengths[place * num_rows + row] = length;
      if (may_change({start, length}, text)) __atomic_store_n(&layout.changing[place], 1, __ATOMIC_RELAXED);
    }
    if (*p == '\n') {
      if (column + 1 != layout.num_columns) *found = {Problem::columns, row, column};
      return p + 1;
    }
    ++p;
  }
}

int64_t count_lines(const char* p, const char* end) { return std::count(p, end, '\n'); }

// Where part `i` of `n` of the text begins: at the start of a line.
char* part_start(char* text, int64_t size, int64_t i, int64_t n) {
  const int64_t middle = size * i / n;
  if (middle == 0) return text;
  CHECK(n > 0 && i >= 0 && i <= n && size > 0 && text[size - 1] == '\n', i, n, size);
  void* line_break = std::memchr(text + middle - 1, '\n', static_cast<size_t>(size - middle + 1));
  return line_break ? static_cast<char*>(line_break) + 1 : text + size;
}

// Whether [p, end) is a decimal number without a sign; tells whether it is a plain integer.
bool is_number(const char* p, const char* end, bool* integer) {
  const int64_t whole = digits(p, end);
  p += whole;
  *integer = p == end;
  int64_t fraction = 0;
  if (p < end && *p == '.') {
    fraction = digits(++p, end);
    p += fraction;
  }
  if (whole + fraction == 0) return false;
  if (p < end && (*p == 'e' || *p == 'E')) {
    ++p;
    if (p < end && (*p == '+' || *p == '-')) ++p;
    const int64_t exponent = digits(p, end);
    if (exponent == 0) return false;
    p += exponent;
  }
  return p == end;
}

double parse_decimal(const char* p, const char* end) {
  double value = 0;
  const auto result = std::from_chars(p, end, value);
  if (result.ec == std::errc()) return value;
  return std::strtod(std::string(p, end).c_str(), nullptr);  // over- or underflow: infinity or zero
}

bool is_nan(const char* p, const char* end) {
  return end - p == 3 && p[1] == 'a' && ((*p == 'N' && p[2] == 'N') || (*p == 'n' && p[2] == 'n'));
}

// The number of a boolean, or of NaN; false for any other text.
bool parse_word(const char* p, const char* end, double* value) {
  const std::string word(p, end);
  const bool yes = word == "true" || word == "True" || word == "TRUE";
  *value = is_nan(p, end) ? std::numeric_limits<double>::quiet_NaN() : yes;
  return yes || is_nan(p, end) || word == "false" || word == "False" || word == "FALSE";
}

// Marks in numbers: before decimals, and between groups of three digits of the whole part (0: none).
struct Marks {
  char decimal, thousands;
};

// A number as machines write it; another text where a mark stands elsewhere. "1.234,5" -> "1234.5"
std::string without_marks(const char* p, const char* end, Marks marks) {
  const char* const point = std::find(p, end, marks.decimal);
  const char* const whole = p + (p < point && (*p == '+' || *p == '-'));
  const int64_t first = digits(whole, point);
  bool grouped = marks.thousands && first >= 1 && first <= 3 && whole + first < point;
  for (const char* group = whole + first; grouped && group < point; group += 4) {
    grouped = point - group >= 4 && *group == marks.thousands && digits(group + 1, group + 4) == 3;
  }
  std::string plain(p, point), fraction(point < end ? point + 1 : end, end);
  if (grouped) plain.erase(std::remove(plain.begin(), plain.end(), marks.thousands), plain.end());
  const bool foreign = (plain + fraction).find('.') != std::string::npos;
  if (foreign && (point == end || marks.decimal != '.')) return "?";
  return point < end ? plain + '.' + fraction : plain;
}

// The number in a field: NaN where it is empty or NaN; a boolean is 1 or 0. False for other text, and for what
// float32 cannot hold.
bool parse_number(Field field, double* value) {
  const char* p = field.data;
  const char* end = p + field.length;
  while (p < end && *p == ' ') ++p;
  while (p < end && end[-1] == ' ') --end;
  if (p == end) {
    *value = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  const char* const start = p;
  const bool negative = *p == '-';
  if (negative || *p == '+') ++p;
  bool integer;
  if (!is_number(p, end, &integer)) return parse_word(start, end, value);
  double magnitude;
  if (integer && end - p <= 18) {
    int64_t whole = 0;
    for (; p < end; ++p) whole = whole * 10 + (*p - '0');
    magnitude = static_cast<double>(whole);
  } else {
    magnitude = parse_decimal(p, end);
  }
  *value = (negative ? -magnitude : magnitude) + 0.0;  // never a negative zero
  return std::isfinite(static_cast<float>(magnitude));
}

bool parse_marked_number(Field field, Marks marks, double* value) {
  const char* p = field.data;
  const char* end = p + field.length;
  while (p < end && *p == ' ') ++p;
  while (p < end && end[-1] == ' ') --end;
  const std::string plain = without_marks(p, end, marks);
  return parse_number({plain.data(), static_cast<uint32_t>(plain.size())}, value);
}

// Whether a value is one of the `num_missing` values that stand in `bytes`, each up to its end.
bool is_missing(Field value, const char* bytes, const int64_t* ends, int64_t num_missing) {
  for (int64_t i = 0; i < num_missing; ++i) {
    const int64_t start = i ? ends[i - 1] : 0;
    if (ends[i] - start == value.length && !std::memcmp(bytes + start, value.data, value.length)) {
      return true;
    }
  }
  return false;
}

// Days from 1970-01-01 to a day of the Gregorian calendar (Howard Hinnant, days_from_civil).
int64_t days_from_civil(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2;
  const int64_t era = (year >= 0 ? year : year - 399) / 400;
  const int64_t of_era = year - era * 400;
  const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

int64_t days_in_month(int64_t year, int64_t month) {
  const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  return month == 2 ? 28 + leap : 30 + ((month + (month > 7)) & 1);
}

// Reads `width` decimal digits at `p`; false where there are fewer.
bool read_digits(const char*& p, const char* end, int64_t width, int64_t* value) {
  if (end - p < width) return false;
  *value = 0;
  CHECK(width > 0 && width < 19, width);
  for (; width > 0; --width, ++p) {
    if (!is_digit(*p)) return false;
    *value = *value * 10 + (*p - '0');
  }
  return true;
}

bool take(const char*& p, const char* end, char c) { return p < end && *p == c ? ++p, true : false; }

// Seconds since 1970 of YYYY-MM-DD[(T| )HH:MM[:SS[.fraction]][ ][Z|UTC|(+|-)HH[[:]MM]]]; false where it
// is none. clock: those of the time as it is written, without its offset.
bool parse_iso(Field field, int64_t* seconds, int64_t* clock) {
  const char* p = field.data;
  const char* const end = p + field.length;
  int64_t year, month, day, hour = 0, minute = 0, second = 0, hours = 0, minutes = 0, sign = 0;
  const bool dated = read_digits(p, end, 4, &year) && take(p, end, '-') && read_digits(p, end, 2, &month) &&
                     take(p, end, '-') && read_digits(p, end, 2, &day);
  if (!dated || year < 1 || month < 1 || month > 12 || day < 1 || day > days_in_month(year, month)) return false;
  if (p < end) {
    if (!take(p, end, 'T') && !take(p, end, ' ')) return false;
    if (!read_digits(p, end, 2, &hour) || !take(p, end, ':') || !read_digits(p, end, 2, &minute)) return false;
    if (take(p, end, ':')) {
      if (!read_digits(p, end, 2, &second)) return false;
      if (take(p, end, '.')) {
        const int64_t num = digits(p, end);
        if (num < 1 || num > 9) return false;
        p += num;
      }
    }
    take(p, end, ' ');
    if (end - p == 3 && std::equal(p, end, "UTC")) p = end;
    else if (!take(p, end, 'Z') && p < end) {
      sign = *p == '-' ? -1 : (*p == '+' ? 1 : 0);
      if (!sign || !read_digits(++p, end, 2, &hours)) return false;
      if (p < end && (take(p, end, ':'), !read_digits(p, end, 2, &minutes))) return false;
    }
  }
  if (p != end || hour > 23 || minute > 59 || second > 59 || hours > 23 || minutes > 59) return false;
  *clock = ((days_from_civil(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
  *seconds = *clock - sign * (hours * 60 + minutes) * 60;
  return true;
}

// Seconds since 1970 of a time written as `format` says; false where it is not.
bool parse_time(Field field, const char* format, const char* format_end, int64_t* seconds) {
  const char* p = field.data;
  const char* const end = p + field.length;
  int64_t year = 1970, month = 1, day = 1, hour = 0, minute = 0, second = 0;
  for (; format < format_end; ++format) {
    if (*format != '%' || format + 1 == format_end) {
      if (p == end || *p++ != *format) return false;
      continue;
    }
    bool found = false;
    switch (*++format) {
      case 'Y': found = read_digits(p, end, 4, &year); break;
      case 'y':
        found = read_digits(p, end, 2, &year);
        year += year < 69 ? 2000 : 1900;
        break;
      case 'm': found = read_digits(p, end, 2, &month); break;
      case 'd': found = read_digits(p, end, 2, &day); break;
      case 'H': found = read_digits(p, end, 2, &hour); break;
      case 'M': found = read_digits(p, end, 2, &minute); break;
      case 'S': found = read_digits(p, end, 2, &second); break;
    }
    if (!found) return false;
  }
  if (p != end || year < 1 || month < 1 || month > 12 || day < 1 || day > days_in_month(year, month)) return false;
  if (hour > 23 || minute > 59 || second > 59) return false;
  *seconds = ((days_from_civil(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
  return true;
}

}  // namespace
}  // namespace hotrows

using namespace hotrows;

// Cuts num_rows lines into fields. starts, lengths: [columns in use, num_rows]. Returns 0, or what is
// wrong with the first bad line, a TextProblem (its number of columns, a quote never closed, text after a
// closing quote), with problem = {row, column; of `columns` the last one}. changing: [columns in use], 1 where
// the canonical text of a field may be another than its own.
HOTROWS_API int64_t hotrows_tokenize(char* text, int64_t size, int64_t delimiter, int64_t quoted,
                                     int64_t num_columns, const int32_t* wanted, int64_t num_rows,
                                     uint32_t* starts, uint32_t* lengths, uint8_t* changing,
                                     int64_t* problem, int64_t threads) {
  const Layout layout{static_cast<char>(delimiter), quoted != 0, num_columns, wanted, changing};
  std::vector<int64_t> first_row(threads + 1, 0);
  std::vector<Found> found(threads);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int64_t i = 0; i < threads; ++i) {
    first_row[i + 1] =
        count_lines(part_start(text, size, i, threads), part_start(text, size, i + 1, threads));
  }
  for (int64_t i = 0; i < threads; ++i) first_row[i + 1] += first_row[i];
  CHECK(first_row[threads] == num_rows, first_row[threads], num_rows);
  std::vector<char*> bounds(threads + 1);
  for (int64_t i = 0; i <= threads; ++i) bounds[i] = part_start(text, size, i, threads);
  CHECK(never_falls(bounds.data(), threads + 1) && bounds[threads] == text + size, threads, size);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int64_t i = 0; i < threads; ++i) {
    char* p = bounds[i];
    for (int64_t row = first_row[i]; row < first_row[i + 1] && found[i].problem == Problem::none; ++row) {
      p = cut_line(p, text, layout, row, num_rows, starts, lengths, &found[i]);
    }
    CHECK(found[i].problem != Problem::none || p == bounds[i + 1], i, p - text, bounds[i + 1] - text);
  }
  for (const Found& f : found) {
    if (f.problem == Problem::none) continue;
    problem[0] = f.row;
    problem[1] = f.column;
    return static_cast<int64_t>(f.problem);
  }
  return static_cast<int64_t>(Problem::none);
}

// Parses the fields of `columns` [num_features] as numbers into values [num_features, num_rows], NaN
// where they are empty. decimal, thousands: marks in them, 0 for none. Returns the first row that holds something else, with *feature the first such
// feature of it, or -1.
HOTROWS_API int64_t hotrows_parse_numbers(const char* text, int64_t size, const uint32_t* starts,
                                          const uint32_t* lengths, int64_t num_rows,
                                          const int32_t* columns, int64_t num_features,
                                          int64_t decimal, int64_t thousands, double* values, int64_t* feature, int64_t threads) {
  const Fields fields{text, size, starts, lengths, num_rows};
  const Marks marks{static_cast<char>(decimal), static_cast<char>(thousands)};
  const bool marked = marks.decimal != '.' || marks.thousands;
  std::vector<int64_t> bad(num_features, num_rows);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (num_features * num_rows > kFew)
  for (int64_t f = 0; f < num_features; ++f) {
    for (int64_t row = 0; row < num_rows; ++row) {
      const Field field = fields.at(columns[f], row);
      double* const value = &values[f * num_rows + row];
      if (marked ? parse_marked_number(field, marks, value) : parse_number(field, value)) continue;
      bad[f] = row;
      break;
    }
  }
  const auto first = std::min_element(bad.begin(), bad.end());
  if (first == bad.end() || *first == num_rows) return -1;
  *feature = first - bad.begin();
  return *first;
}

// Adds the chosen rows of values [num_features, num_rows] to moments [num_features, 3]: count, mean
// and sum of squared differences from it (Welford 1962), row after row. NaN counts as absent.
HOTROWS_API int64_t hotrows_add_moments(const double* values, int64_t num_features,
                                        int64_t num_rows, const uint8_t* chosen, double* moments,
                                        int64_t threads) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (num_features * num_rows > kFew)
  for (int64_t f = 0; f < num_features; ++f) {
    double count = moments[3 * f], mean = moments[3 * f + 1], squares = moments[3 * f + 2];
    for (int64_t row = 0; row < num_rows; ++row) {
      const double value = values[f * num_rows + row];
      if (!chosen[row] || std::isnan(value)) continue;
      const double difference = value - mean;
      count += 1;
      mean += difference / count;
      squares += difference * (value - mean);
    }
    moments[3 * f] = count;
    moments[3 * f + 1] = mean;
    moments[3 * f + 2] = squares;
  }
  return 0;
}

// dense [num_rows, num_features] = (values - shift) / divisor, or log(1 + max(value, 0)) where `logs`;
// 0 where the value is missing.
HOTROWS_API int64_t hotrows_transform(const double* values, int64_t num_features, int64_t num_rows,
                                      const uint8_t* logs, const double* shift,
                                      const double* divisor, float* dense, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (num_features * num_rows > kFew)
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t f = 0; f < num_features; ++f) {
      const double value = values[f * num_rows + row];
      double result = 0;
      if (!std::isnan(value)) {
        result = logs[f] ? std::log1p(std::max(value, 0.0)) : (value - shift[f]) / divisor[f];
      }
      dense[row * num_features + f] = static_cast<float>(result);
    }
  }
  return 0;
}

// Takes the spaces around each of n values away where `strip` says so, and makes those that stand
// among the missing ones empty; in place, in starts and lengths.
HOTROWS_API int64_t hotrows_blank(const char* text, uint32_t* starts, uint32_t* lengths, int64_t n,
                                  int64_t strip, const char* missing, const int64_t* missing_ends,
                                  int64_t num_missing, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (n > kFew)
  for (int64_t i = 0; i < n; ++i) {
    uint32_t start = starts[i], length = lengths[i];
    while (strip && length > 0 && text[start] == ' ') ++start, --length;
    while (strip && length > 0 && text[start + length - 1] == ' ') --length;
    CHECK(start >= starts[i] && start - starts[i] + length <= lengths[i], i, start, length);
    if (is_missing({text + start, length}, missing, missing_ends, num_missing)) length = 0;
    starts[i] = start;
    lengths[i] = length;
  }
  return 0;
}

// offsets [n + 1]: how many values the cells before each one hold, between separators; an empty cell
// holds none. Returns the number of all.
HOTROWS_API int64_t hotrows_count_values(const char* text, const uint32_t* starts,
                                         const uint32_t* lengths, int64_t n, int64_t separator,
                                         int64_t* offsets, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (n > kFew)
  for (int64_t i = 0; i < n; ++i) {
    const char* const cell = text + starts[i];
    const auto between = std::count(cell, cell + lengths[i], static_cast<char>(separator));
    offsets[i + 1] = lengths[i] > 0 ? between + 1 : 0;
  }
  offsets[0] = 0;
  for (int64_t i = 0; i < n; ++i) offsets[i + 1] += offsets[i];
  return offsets[n];
}

// Where the values of the cells stand: value_starts, value_lengths [offsets[n]].
HOTROWS_API int64_t hotrows_cut_values(const char* text, const uint32_t* starts,
                                       const uint32_t* lengths, int64_t n, int64_t separator,
                                       const int64_t* offsets, uint32_t* value_starts,
                                       uint32_t* value_lengths, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (n > kFew)
  for (int64_t i = 0; i < n; ++i) {
    uint32_t at = starts[i];
    const uint32_t end = starts[i] + lengths[i];
    CHECK(offsets[i] <= offsets[i + 1] && (lengths[i] > 0) == (offsets[i] < offsets[i + 1]), i, offsets[i], lengths[i]);
    for (int64_t value = offsets[i]; value < offsets[i + 1]; ++value) {
      CHECK(at <= end, i, value, at, end);
      const void* found = std::memchr(text + at, static_cast<int>(separator), end - at);
      const uint32_t stop = found ? static_cast<uint32_t>(static_cast<const char*>(found) - text) : end;
      value_starts[value] = at;
      value_lengths[value] = stop - at;
      at = stop + 1;
    }
    CHECK(lengths[i] == 0 || at == end + 1, i, at, end);  // nothing is left
  }
  return 0;
}

// seconds [n]: since 1970, of times written as `format` says (`iso`, or %Y %y %m %d %H %M %S, digits in
// full; other characters stand for themselves); the least int64 where the value is missing. clocks [n]: the
// same as the time is written, without its offset. Returns the first value that is no such time, or -1.
HOTROWS_API int64_t hotrows_parse_times(const char* text, const uint32_t* starts,
                                        const uint32_t* lengths, int64_t n, const char* format,
                                        int64_t format_length, int64_t* seconds, int64_t* clocks,
                                        int64_t threads) {
  int64_t bad = n;
  const bool iso = format_length == 3 && std::equal(format, format + 3, "iso");
#pragma omp parallel for schedule(static) num_threads(threads) if (n > kFew) reduction(min : bad)
  for (int64_t i = 0; i < n; ++i) {
    seconds[i] = clocks[i] = std::numeric_limits<int64_t>::min();
    const Field field{text + starts[i], lengths[i]};
    if (field.length == 0 || is_nan(field.data, field.data + field.length)) continue;
    const bool found = iso ? parse_iso(field, &seconds[i], &clocks[i])
                           : parse_time(field, format, format + format_length, &seconds[i]);
    if (!iso) clocks[i] = seconds[i];
    if (!found && i < bad) bad = i;
  }
  return bad == n ? -1 : bad;
}
