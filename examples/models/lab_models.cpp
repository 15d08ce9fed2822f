// The models of this folder that classify images, by name in gradual-lab (--model).
#include <gradual/lab/models.h>

#include "resnet20.h"
#include "row_reader.h"
#include "vit.h"

namespace gradual::lab {

void add_example_models();  // declared in lab/main/command_line.h

void add_example_models() {
  add_model("resnet20", [](const data::Dataset& d) -> MakeModel {
    const Shape s = image_sizes("resnet20", d);
    return [s, outputs = outputs_for(d)] { return std::make_shared<models::ResNet20>(s[1], outputs); };
  });
  add_model("vit", [](const data::Dataset& d) -> MakeModel {
    const Shape s = image_sizes("vit", d);
    const models::VitOptions o{
        .channels = s[1], .side = s[2], .patch = s[2] < 16 ? 2 : 4, .classes = outputs_for(d)};  // 16 to 64 patches
    if (s[2] != s[3] || s[2] % o.patch != 0)
      throw_error("model vit reads square images of whole patches, the data are " + to_string(s) + ", a patch has " +
                  std::to_string(o.patch) + " pixels a side");
    return [o] { return std::make_shared<models::Vit>(o); };
  });
  add_model("lstm", [](const data::Dataset& d) -> MakeModel {
    const Shape s = image_sizes("lstm", d);
    return [s, outputs = outputs_for(d)] { return std::make_shared<models::RowReader>(s[1] * s[3], 64, outputs); };
  });
}

}  // namespace gradual::lab
