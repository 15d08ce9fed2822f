// Where gradual-lab puts its results when --out is not given.
#pragma once

#include <string>

namespace gradual::lab {

// A name for a new folder under gradual-lab-out/: the time (UTC), with a number where that exists.
std::string new_folder();
// Points gradual-lab-out/latest to a folder under gradual-lab-out/. Systems without links have none.
void set_latest(const std::string& folder);
// What gradual-lab-out/latest points to. Error if there is none.
std::string latest_folder();

}  // namespace gradual::lab
