#include "safetensors.h"

#include <algorithm>
#include <cstring>

#include "../support/message_text.h"
#include "../support/throwf.h"
#include "atomic_file.h"
#include "input_file.h"
#include "json_text.h"

namespace gradual {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // as the reference implementation has it
constexpr const char* kMetadata = "__metadata__";

const std::vector<std::string> kNames = {"F64",     "F32", "F16", "BF16", "F8_E4M3",
                                         "F8_E5M2", "I64", "I32", "U8",   "BOOL"};  // by DType

// The other dtypes of the format, and the bits of an element.
struct OtherType {
  std::string_view name;
  std::int64_t bits;
};
constexpr OtherType kOthers[] = {{"I8", 8},      {"I16", 16}, {"U16", 16},    {"U32", 32},    {"U64", 64},
                                 {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"C64", 64}};

// A tensor in the file: its data's bytes from the end of the header.
struct Entry {
  std::string name;
  DType dtype = DType::f32;
  const OtherType* other = nullptr;  // not null: the dtype instead
  Shape sizes{};
  std::size_t begin = 0;
  std::size_t end = 0;
};

std::string_view split_header(std::string_view bytes) {
  if (bytes.size() < 8) throwf("has {} bytes, less than its header's length takes", bytes.size());
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::string about = fmt::format("a header of {} bytes, ", length);
  if (length > kMaxHeader) throwf("{}at most {} are allowed; is it a safetensors file?", about, kMaxHeader);
  if (length > bytes.size() - 8) throwf("{}but only {} follow; the file is truncated", about, bytes.size() - 8);
  if (length == 0 || bytes[8] != '{') throw_error("the header does not start with \"{\"; is it a safetensors file?");
  return bytes.substr(8, length);
}

// A list of unsigned integers; Error if it is not one.
std::vector<std::int64_t> parse_numbers(const Json& json, const char* key, const char* wanted) {
  const auto fits = [](const Json& n) {
    return n.is_number_unsigned() && std::in_range<std::int64_t>(n.get<std::uint64_t>());
  };
  if (!json.is_array() || !std::ranges::all_of(json, fits)) throwf("{} {} {}", key, json.dump(), wanted);
  return json.get<std::vector<std::int64_t>>();
}

Entry parse_entry(const std::string& name, const Json& json, std::size_t data_size) {
  if (!json.is_object()) throw_error("its entry is not an object");
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!json.contains(key)) throwf("has no \"{}\"", key);
  const auto dtype = std::ranges::find_if(kNames, [&](const std::string& n) { return json["dtype"] == n; });
  const auto* other = std::ranges::find_if(kOthers, [&](const OtherType& o) { return json["dtype"] == o.name; });
  const bool is_other = other != std::end(kOthers);
  if (dtype == kNames.end() && !is_other)
    throwf("dtype {} is unknown; allowed are {}", json["dtype"].dump(), join(kNames));
  const Json& offsets = json["data_offsets"];
  const auto places = parse_numbers(offsets, "data_offsets", "are not two unsigned integers");
  if (places.size() != 2) throwf("data_offsets {} are not two unsigned integers", offsets.dump());
  Entry e{.name = name,
          .dtype = is_other ? DType::u8 : static_cast<DType>(dtype - kNames.begin()),
          .other = is_other ? other : nullptr,
          .sizes = parse_numbers(json["shape"], "shape", "is not a list of sizes"),
          .begin = static_cast<std::size_t>(places[0]),
          .end = static_cast<std::size_t>(places[1])};
  if (e.begin > e.end || e.end > data_size)
    throwf("data_offsets {} do not lie in order within the {} bytes of data", offsets.dump(), data_size);
  if (is_other && static_cast<std::uint64_t>(numel(e.sizes)) > std::uint64_t{8} * data_size)
    throwf("{} {} does not take the {} bytes that are there", other->name, to_string(e.sizes), e.end - e.begin);
  if (is_other && numel(e.sizes) * other->bits != 8 * static_cast<std::int64_t>(e.end - e.begin))
    throwf("{} {} does not take the {} bytes that are there", other->name, to_string(e.sizes), e.end - e.begin);
  return e;
}

// Every byte of the data belongs to exactly one tensor.
void check_places(std::vector<Entry> entries, std::size_t data_size) {
  std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
  std::size_t at = 0;
  for (const Entry& e : entries) {
    if (e.begin != at)
      throwf("tensor \"{}\": its data starts at byte {}, {}", e.name, e.begin,
             e.begin < at ? "within another tensor's" : fmt::format("but bytes from {} on belong to none", at));
    at = e.end;
  }
  if (at != data_size) throwf("{} bytes are left over after the last tensor's data", data_size - at);
}

std::map<std::string, std::string> parse_metadata(const Json& json) {
  if (!json.is_object()) throw_error("__metadata__ is not an object");
  for (const auto& item : json.items())
    if (!item.value().is_string()) throw_error("__metadata__: \"" + item.key() + "\" is not text");
  return json.get<std::map<std::string, std::string>>();
}

Safetensors parse(std::string_view bytes) {
  const std::string_view header = split_header(bytes);
  const std::string_view data = bytes.substr(8 + header.size());
  Safetensors out;
  std::vector<Entry> entries;
  std::vector<std::string> names;
  const auto json = parse_json<Json>(header, [&](std::size_t level, const std::string& key) {
    if (level == 1) names.push_back(key);
  });
  const auto in_tensor = [](const std::string& name, auto f) { return in_context("tensor \"" + name + "\"", f); };
  for (const std::string& name : names) {
    if (name == kMetadata) out.metadata = parse_metadata(json[name]);
    else entries.push_back(in_tensor(name, [&] { return parse_entry(name, json[name], data.size()); }));
  }
  check_places(entries, data.size());
  for (const Entry& e : entries) {
    if (e.other) {
      out.unread.push_back({e.name, std::string(e.other->name), e.sizes});
      continue;
    }
    const std::string_view held = data.substr(e.begin, e.end - e.begin);
    out.tensors.set(e.name, in_tensor(e.name, [&] { return tensor_of_bytes(e.dtype, e.sizes, held); }));
  }
  return out;
}

using Tensors = std::vector<std::pair<std::string, Tensor>>;

// The header, padded so that the data starts at a multiple of 8. Puts the tensors into the order of their data: wide
// elements first, so that each is aligned to its elements. The header keeps the order in which they were given.
std::string make_header(Tensors& tensors, const std::map<std::string, std::string>& metadata) {
  OrderedJson json = OrderedJson::object();
  auto& object = json.get_ref<OrderedJson::object_t&>();
  if (!metadata.empty()) object.emplace_back(kMetadata, metadata);
  const std::size_t first = object.size();
  std::vector<std::size_t> order;
  for (const auto& [name, t] : tensors) {  // names are unique; looking each up again would take quadratic time
    const std::vector<std::int64_t> sizes(t.sizes().begin(), t.sizes().end());
    order.push_back(order.size());
    object.emplace_back(name, OrderedJson{{"dtype", kNames[static_cast<std::size_t>(t.dtype())]}, {"shape", sizes}});
  }
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return size_of(tensors[i].second.dtype()); });
  Tensors sorted;
  std::size_t at = 0;
  for (const std::size_t i : order) {
    const std::size_t end = at + tensors[i].second.nbytes();
    (object.begin() + static_cast<std::ptrdiff_t>(first + i))->second["data_offsets"] = {at, end};
    at = end;
    sorted.push_back(tensors[i]);
  }
  tensors = std::move(sorted);
  std::string text;
  try {
    text = json.dump();
  } catch (const OrderedJson::exception& e) { throwf("a name or text is not valid UTF-8: {}", json_problem(e)); }
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeader) throwf("its header would have {} bytes", text.size());
  return text;
}

}  // namespace

void save_safetensors(const std::string& path, const StateDict& tensors,
                      const std::map<std::string, std::string>& metadata) {
  in_context("save_safetensors: \"" + path + "\"", [&] {
    Tensors dense;
    for (const auto& [name, value] : tensors) {
      const auto* t = std::get_if<Tensor>(&value);
      if (!t) throwf("\"{}\" is {}, the format has tensors only; save_checkpoint has both", name, describe(value));
      if (name == kMetadata) throw_error("a tensor cannot be called __metadata__, the format uses that name");
      dense.emplace_back(name, t->detach().to(Device::cpu()).contiguous());
    }
    const std::string header = make_header(dense, metadata);
    const std::uint64_t length = header.size();
    AtomicFile file(path);
    file.write(&length, sizeof length);
    file.write(header);
    for (const auto& named : dense) file.write(named.second.raw(), named.second.nbytes());
    file.commit();
  });
}

Tensor Safetensors::tensor(const std::string& name) const {
  for (const Unread& u : unread)
    if (u.name == name)
      throwf("safetensors: \"{}\" is {} {}, a dtype that no tensor has; allowed are {}", name, u.dtype,
             to_string(u.sizes), join(kNames));
  return tensors.tensor(name);
}

Safetensors load_safetensors(const std::string& path) { return parse_safetensors(read_file(path), path); }

Safetensors parse_safetensors(std::string_view bytes, const std::string& name) {
  return in_context("safetensors \"" + name + "\"", [&] { return parse(bytes); });
}

}  // namespace gradual
