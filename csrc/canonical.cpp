// The canonical text of a value: one spelling for what programs write in several.
//
//   42.0 -> 42    -0.0, -0 -> 0    1e+10 -> 10000000000    True, TRUE -> true    NaN, nan -> (missing)
//   2024-03-01T10:00:00.500000 -> 2024-03-01 10:00:00.5    2024-03-01 00:00:00 -> 2024-03-01
//
// Any other value is its own canonical text. `plain_canonical` (data/raw/canonical.py) is the
// specification.
#include "canonical.h"
#include "value.h"

namespace hotrows {
namespace {

constexpr uint32_t kRoom = 40;                 // bytes of the longest text that is written anew
constexpr int64_t kLastExact = int64_t{1} << 53;  // float64 holds whole numbers exactly up to here

bool is(Field value, const char* word) {
  return std::strlen(word) == value.length && std::memcmp(value.data, word, value.length) == 0;
}

// Whether the bytes from `p` on are as drawn: 'd' is a digit, others stand for themselves.
bool drawn(const char* p, const char* end, const char* drawing) {
  for (; *drawing; ++drawing, ++p) {
    if (p == end || (*drawing == 'd' ? !is_digit(*p) : *p != *drawing)) return false;
  }
  return true;
}

Field word(Field value) {
  if (is(value, "True") || is(value, "TRUE")) return {"true", 4};
  if (is(value, "False") || is(value, "FALSE")) return {"false", 5};
  if (is(value, "NaN") || is(value, "nan")) return {value.data, 0};
  return value;
}

// Whether a value is a whole number without leading zeros.
bool is_whole(Field value) {
  const bool negative = value.length > 0 && *value.data == '-';
  const char* const p = value.data + negative;
  const char* const end = value.data + value.length;
  return p < end && digits(p, end) == end - p && (*p != '0' || end - p == 1);
}

Field without_sign_of_zero(Field value) { return is(value, "-0") ? Field{value.data + 1, 1} : value; }

// D.DDDe+DD, written out where that is a whole number that float64 holds exactly.
Field written_out(Field value, char* room) {
  const char* p = value.data;
  const char* const end = p + value.length - 4;
  const bool negative = *p == '-';
  p += negative;
  const int64_t exponent = (end[2] - '0') * 10 + (end[3] - '0');
  if (p >= end || !drawn(end, end + 4, "e+dd") || *p < '1' || *p > '9' || exponent > 15) return value;
  const bool fraction = end - p > 1;
  const int64_t num_fraction = fraction ? end - p - 2 : 0;
  if (fraction && (p[1] != '.' || num_fraction < 1 || digits(p + 2, end) != num_fraction || end[-1] == '0')) {
    return value;
  }
  if (num_fraction > exponent) return value;
  char* to = room;
  if (negative) *to++ = '-';
  char* const first = to;
  *to++ = *p;
  to = std::copy_n(p + 2, num_fraction, to);
  to = std::fill_n(to, exponent - num_fraction, '0');
  int64_t number = 0;
  for (const char* digit = first; digit < to; ++digit) number = number * 10 + (*digit - '0');
  return number <= kLastExact ? Field{room, static_cast<uint32_t>(to - room)} : value;
}

// YYYY-MM-DD(T| )HH:MM:SS[.fraction][zone]: a space before the hour, no zeros at the end of the
// fraction, the zone as Z or +HHMM; of midnight without a zone the date alone.
Field time(Field value, char* room) {
  const char* const end = value.data + value.length;
  const char* const clock = value.data + 11;
  const bool dated = drawn(value.data, end, "dddd-dd-dd") && (clock[-1] == ' ' || clock[-1] == 'T');
  if (!dated || !drawn(clock, end, "dd:dd:dd")) return value;
  const char* const point = clock + 8;
  const char* zone = point;
  if (point < end && *point == '.') {
    const int64_t num = digits(point + 1, end);
    if (num < 1 || num > 9) return value;
    zone = point + 1 + num;
  }
  const char* last = zone;
  while (last > point && (last[-1] == '0' || last[-1] == '.')) --last;
  if (zone == end && last == point && drawn(clock, end, "00:00:00")) return {value.data, 10};
  char* to = std::copy_n(value.data, 10, room);
  *to++ = ' ';
  to = std::copy(clock, last, to);
  const int64_t size = end - zone;
  const bool is_offset = size > 0 && (*zone == '+' || *zone == '-') &&
                         ((size == 5 && drawn(zone + 1, end, "dddd")) ||
                          (size == 6 && drawn(zone + 1, end, "dd:dd")));
  if (is_offset) {
    const char hours_minutes[] = {zone[1], zone[2], end[-2], end[-1]};
    const bool is_utc = std::count(hours_minutes, hours_minutes + 4, '0') == 4;
    *to++ = is_utc ? 'Z' : *zone;
    if (!is_utc) to = std::copy_n(hours_minutes, 4, to);
  } else if (size == 1 && *zone == 'Z') {
    *to++ = 'Z';
  } else if (size > 0) {
    return value;
  }
  return {room, static_cast<uint32_t>(to - room)};
}

// The canonical text: in the value's own bytes where it stands there, else in `room` or a constant.
Field canonical(Field value, const char* text, char* room) {
  const uint32_t n = value.length;
  if (n < 2 || !may_change(value, text)) return value;
  const char* const p = value.data;
  if (!is_digit(*p) && *p != '-') return word(value);
  if (n == 2) return without_sign_of_zero(value);
  if (p[n - 1] == '0' && p[n - 2] == '.' && is_whole({p, n - 2})) return without_sign_of_zero({p, n - 2});
  if (n >= 5 && p[n - 3] == '+') return written_out(value, room);
  if (n < 19) return value;
  const Field written = time(value, room);
  return same(written, value) ? value : written;
}

}  // namespace
}  // namespace hotrows

using namespace hotrows;

// Canonical texts of n values of a text: their spans, where all stand in the text itself. Returns 0;
// or, where some do not, the bytes that all take together.
HOTROWS_API int64_t hotrows_canonical(const char* text, const uint32_t* starts, const uint32_t* lengths,
                                      int64_t n, uint32_t* new_starts, uint32_t* new_lengths,
                                      int64_t threads) {
  int64_t size = 0, anew = 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (n > kFew) reduction(+ : size, anew)
  for (int64_t i = 0; i < n; ++i) {
    char room[kRoom];
    const Field value{text + starts[i], lengths[i]};
    const Field found = canonical(value, text, room);
    CHECK(found.length <= std::max(value.length, kRoom), i, value.length, found.length);
    const bool inside = found.data >= value.data && found.data <= value.data + value.length;
    new_starts[i] = inside ? static_cast<uint32_t>(found.data - text) : 0;
    new_lengths[i] = found.length;
    size += found.length;
    anew += !inside;
  }
  return anew ? size : 0;
}

// Writes the canonical texts of n values end to end, and their spans.
HOTROWS_API int64_t hotrows_write_canonical(const char* text, const uint32_t* starts,
                                            const uint32_t* lengths, int64_t n, char* to,
                                            uint32_t* new_starts, uint32_t* new_lengths) {
  uint32_t at = 0;
  for (int64_t i = 0; i < n; ++i) {
    char room[kRoom];
    const Field found = canonical({text + starts[i], lengths[i]}, text, room);
    CHECK(int64_t{at} + found.length <= UINT32_MAX, i, at, found.length);
    std::copy_n(found.data, found.length, to + at);
    new_starts[i] = at;
    new_lengths[i] = found.length;
    at += found.length;
  }
  return 0;
}
