#include "watch.h"

#include <cxxabi.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "../core/error.h"
#include "runtime.h"

namespace gradual {

namespace cuda {

struct Notes {
  std::vector<std::string> kernels;
};

namespace {

// "EachIndex<MapDense<float, float, 2, Add>>": without the namespaces of ours.
std::string readable_name(const char* mangled) {
  int status = 0;
  char* const text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? text : mangled;
  std::free(text);
  for (const char* space : {"gradual::", "cuda::", "functors::", "(anonymous namespace)::"})
    for (std::size_t at = name.find(space); at != std::string::npos; at = name.find(space, at))
      name.erase(at, std::char_traits<char>::length(space));
  return name;
}

}  // namespace

void note(Notes& to, const std::type_info& kernel) { to.kernels.push_back(readable_name(kernel.name())); }
void note(Notes& to, const char* call) { to.kernels.emplace_back(call); }

}  // namespace cuda

namespace device {

struct Watch::Span {
  cuda::Notes notes;
  cuda::Event start, end;
};

Watch::Watch(Device device) {
  if (cuda::notes) fail("device::Watch: this thread is watched already");
  select(device);
  span_ = std::make_unique<Span>();
  span_->start.record();
  cuda::notes = &span_->notes;
}
Watch::~Watch() { cuda::notes = nullptr; }

Work Watch::stop() {
  cuda::notes = nullptr;
  span_->end.record();
  span_->end.synchronize();
  return {span_->end.milliseconds_since(span_->start) * 1e-3, std::move(span_->notes.kernels)};
}

}  // namespace device
}  // namespace gradual
