// What oneDNN offers to compute, by the file that fills the column. Called once by register_columns().
#pragma once

#include "../ops/dispatch.h"

namespace gradual::onednn {

inline void set_offer(OpId op, OfferFn fn) { columns().onednn[static_cast<int>(op)] = fn; }

void register_contractions();
void register_convolutions();

}  // namespace gradual::onednn
