// The kinds of a model's layers: classes of Python for an exported model.
#pragma once

#include "../inspect/layer_names.h"

namespace gradual::lab {

// Names "4 (Conv2d)" of all modules below the root.
inspect::LayerNames layer_names(nn::Module& model);

}  // namespace gradual::lab
