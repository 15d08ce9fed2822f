#include "python_line.h"

#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "../core/ops/op.h"

namespace gradual::pt2 {
namespace {

// std::source_location has no constructor. In libstdc++ and libc++ it is a pointer to this record, which the compiler's
// __builtin_source_location() makes; a test compares what is read back.
struct Record {
  const char* file;
  const char* function;
  unsigned line;
  unsigned column;
};
static_assert(sizeof(SourceLocation) == sizeof(const Record*));
static_assert(std::is_trivially_copyable_v<SourceLocation>);

}  // namespace

SourceLocation location_of(const PythonLine& line) {
  if (line.line == 0) return {};
  using Key = std::tuple<const char*, unsigned, const char*>;
  static std::mutex mutex;
  static auto* const records = new std::map<Key, std::unique_ptr<Record>>;
  const Key key{intern(line.file), line.line, intern(line.text)};
  const std::lock_guard lock(mutex);
  std::unique_ptr<Record>& record = (*records)[key];
  if (!record) record = std::make_unique<Record>(Record{std::get<0>(key), std::get<2>(key), line.line, 0});
  return std::bit_cast<SourceLocation>(static_cast<const Record*>(record.get()));
}

}  // namespace gradual::pt2
