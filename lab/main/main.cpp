// gradual-lab: the program with the models and optimizers of examples/.
#include <gradual/lab/program.h>

namespace gradual::lab {
// Makes resnet20, vit and lstm, and the optimizers rmsprop, lion and muon known by name. examples/models/lab_models.cpp
// defines it.
void add_example_models();
}  // namespace gradual::lab

int main(int argc, char** argv) {
  gradual::lab::add_example_models();
  return gradual::lab::main(argc, argv);
}
