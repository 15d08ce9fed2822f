#include "profiling.h"

#include <cxxabi.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "../../core/support/error.h"
#include "runtime.h"

namespace gradual {

namespace cuda {

struct Notes {
  struct Entry {
    const std::type_info* kernel;  // or null,
    const char* call;              // and this one
  };
  std::vector<Entry> entries;  // names are made when the work is done
};

// "EachIndex<MapDense<float, float, 2, Add>>": without Gradual's namespaces.
static std::string readable_name(const char* mangled) {
  int status = 0;
  char* const text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? text : mangled;
  std::free(text);
  for (const char* space : {"gradual::", "cuda::", "functors::", "(anonymous namespace)::"})
    for (std::size_t at = name.find(space); at != std::string::npos; at = name.find(space, at))
      name.erase(at, std::char_traits<char>::length(space));
  return name;
}

void note(Notes& to, const std::type_info& kernel) { to.entries.push_back({&kernel, nullptr}); }
void note(Notes& to, const char* call) { to.entries.push_back({nullptr, call}); }

}  // namespace cuda

namespace device {

struct Watch::Span {
  cuda::Notes notes;
  cuda::Event start, end;
};

Watch::Watch(Device device) {
  if (cuda::notes) throw_error("device::Watch: this thread is watched already");
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
  Work work{span_->end.milliseconds_since(span_->start) * 1e-3, {}};
  for (const auto& [kernel, call] : span_->notes.entries)
    work.kernels.push_back(kernel ? cuda::readable_name(kernel->name()) : call);
  return work;
}

}  // namespace device
}  // namespace gradual
