#include "source_dir.h"

std::string source_dir() { return GRADUAL_SOURCE_DIR; }
