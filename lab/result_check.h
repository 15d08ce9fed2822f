// What values the fields of a result may have: files of results are edited by hand, and by other programs.
#pragma once

#include "result.h"

namespace gradual::lab {

// FieldError (json/fields.h) that names the first field whose value no run can have, and what is allowed.
void check_values(const Result& result);

}  // namespace gradual::lab
