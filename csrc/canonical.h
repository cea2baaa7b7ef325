// Which values may have another canonical text (canonical.cpp) than their own: a few bytes tell.
#pragma once

#include "text.h"

namespace hotrows {

// False only for a value that is its own canonical text. Every field of a text is asked, hence few and
// predictable branches: they look at the last three bytes, some of which may stand before the value.
// text: where the buffer begins. Of an empty value one byte must be readable.
inline bool may_change(Field value, const char* text) {
  const char* const p = value.data;
  const char* const end = p + value.length;
  if (end - text < 3) return true;
  if (end[-1] == '0' && (end[-2] == '.' || end[-2] == '-')) return true;  // 42.0, -0
  if (end[-3] == '+') return true;                                       // 1e+10
  if (*p == 'T' || *p == 'F' || *p == 'N' || *p == 'n') return true;     // True, NaN
  return value.length >= 19 && p[13] == ':';                             // 2024-03-01T10:00:00
}

}  // namespace hotrows
