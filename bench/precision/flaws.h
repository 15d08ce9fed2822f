// Code that is planted into models: each computes in f32 what it should, and loses it in a narrow format.
#pragma once

#include <gradual/gradual.h>

#include <memory>
#include <string>

#include "instance.h"

namespace gradual::precision_bench {

// A module for the place after a block; null for Flaw::none.
std::shared_ptr<nn::Module> make_flaw(const Model& model);
// The loss of an instance.
lab::Loss make_loss(const Instance& instance);
// "losses.cpp:FIRST-LAST" of a form that is written badly.
std::string lines_of(LossForm form);
std::string_view to_string(Flaw flaw);
std::string_view to_string(LossForm form);

}  // namespace gradual::precision_bench
