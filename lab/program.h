// The program gradual-lab with models of one's own. A CMake target links gradual::lab, which defines it.
//
//   int main(int argc, char** argv) {
//     gradual::lab::add_model("mine", [](const data::Dataset& d) { .. });
//     return gradual::lab::main(argc, argv);
//   }
//
// It then has all commands: `mine --model mine --data npy:x.npy,y.npy`, `mine step --model mine ..`, and what it prints
// names the program as it was called.
#pragma once

namespace gradual::lab {

// Runs the command line and returns the exit status of the process. Reports all errors itself.
int main(int argc, char** argv);

}  // namespace gradual::lab
