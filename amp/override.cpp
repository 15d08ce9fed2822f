#include "override.h"

#include <memory>
#include <utility>

#include "../core/failf.h"
#include "autocast.h"

namespace gradual::amp {
namespace {

class OverrideHook final : public nn::ModuleHook {
 public:
  explicit OverrideHook(Override what) : what_(std::move(what)) {}
  std::shared_ptr<void> enter(nn::Module&) override {
    const AutocastOptions* around = current_autocast();
    if (!around) return nullptr;
    AutocastOptions options = *around;
    if (what_.enabled) options.enabled = *what_.enabled;
    if (what_.dtype) options.dtype = what_.dtype;
    if (what_.table) options.table = *what_.table;
    return std::make_shared<Autocast>(options);
  }

 private:
  Override what_;
};

}  // namespace

void set_override(nn::Module& module, const Override& what) {
  if (what.dtype && !is_half(*what.dtype))
    failf("set_override on {}: the dtype is f16 or bf16, not {}; {{.enabled = false}} computes in f32", module.kind(),
          name(*what.dtype));
  module.set_hook(std::make_shared<OverrideHook>(what));
}

void clear_override(nn::Module& module) {
  if (dynamic_cast<OverrideHook*>(module.hook().get())) module.set_hook(nullptr);
}

}  // namespace gradual::amp
