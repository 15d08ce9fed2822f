// The lab's program with a model of one's own, as a user outside the tree writes it.
#include <gradual/gradual.h>
#include <gradual/lab/models.h>
#include <gradual/lab/program.h>

#include <memory>

using namespace gradual;

int main(int argc, char** argv) {
  lab::add_model("mine", [](const data::Dataset& d) {
    const std::int64_t pixels = d.inputs.numel() / d.size();
    return [pixels]() -> std::shared_ptr<nn::Module> {
      return std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(pixels, 10));
    };
  });
  return lab::main(argc, argv);
}
