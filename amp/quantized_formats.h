// Formats from files: tables of values (core/formats/format_table.h).
#pragma once

#include <string>

#include "../core/formats/format_table.h"

namespace gradual::amp {

// A .npy file: ascending numbers, f32 or f64, one dim; the format is named after the file. A .json file: an object with
// `name` and `values` and, if they do not follow from the values, `codes`, `bits`, `bounds`, `nan`, `inf`,
// `negative_inf`, `lowest`, `highest` ("none": nothing overflows) and `about`, the fields of ValueTable. Error that
// names the file and what is wrong.
Format load_format(const std::string& path);

}  // namespace gradual::amp
