// Registration of oneDNN's offers, one function per source file. register_columns() calls each once.
#pragma once

#include "../ops/dispatch.h"

namespace gradual::onednn {

inline void set_offer(OpId op, OfferFn fn) { columns().onednn[static_cast<int>(op)] = fn; }

void register_contractions();
void register_convolutions();

}  // namespace gradual::onednn
