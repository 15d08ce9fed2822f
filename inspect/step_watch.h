// The monitors of a step together: activations, attention, the routes of mixtures.
#pragma once

#include "diagnosis.h"

namespace gradual::inspect {

// Observes the steps of a model on this thread while it lives. No bit of the model depends on it.
class StepWatch : Pinned {
 public:
  explicit StepWatch(nn::Module& model);

  const ActivationMonitor& activations() const { return activations_; }
  const RouteObserver& routes() const { return routes_; }
  // What the monitors have seen becomes the step's.
  void write_to(ObservedStep& step) const;

 private:
  ActivationMonitor activations_;
  RouteObserver routes_;
  ObserverScope scope_;
};

}  // namespace gradual::inspect
