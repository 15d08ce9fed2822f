#include "step_watch.h"

namespace gradual::inspect {

StepWatch::StepWatch(nn::Module& model) : routes_(model, RouteObserver::Exact::yes), scope_(activations_) {}

void StepWatch::write_to(ObservedStep& step) const {
  step.activations = activations_.activations();
  step.probabilities = activations_.probabilities();
  step.routes = routes_.rows();
}

}  // namespace gradual::inspect
