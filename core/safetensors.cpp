#include "safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "atomic_file.h"
#include "input_file.h"

namespace gradual {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's bytes are copied as they are");

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // as the reference implementation has it
constexpr const char* kMetadata = "__metadata__";

constexpr const char* kNames[kDTypeCount] = {"F64",     "F32", "F16", "BF16", "F8_E4M3",
                                             "F8_E5M2", "I64", "I32", "U8",   "BOOL"};  // by DType

struct Entry {
  std::string name;
  DType dtype = DType::f32;
  Shape sizes{};
  std::uint64_t begin = 0, end = 0;  // bytes from the end of the header
  Tensor tensor{};
};

// Keys of the top object are added to `order`: the order in which the file has them.
Json parse_json(std::string_view text, std::vector<std::string>& order) {
  std::vector<std::set<std::string>> keys(1);
  const auto check = [&](int depth, Json::parse_event_t event, const Json& value) {
    const auto level = static_cast<std::size_t>(depth);
    if (level > 3) fail("the header nests deeper than the format does");
    if (event == Json::parse_event_t::object_start) {
      keys.resize(level + 1);
      keys.emplace_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys[level].insert(key).second) fail("the header has the key \"" + key + "\" twice");
      if (level == 1) order.push_back(key);
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& e) { fail(std::string("the header is not valid JSON: ") + e.what()); }
}

std::string_view split_header(std::string_view bytes) {
  if (bytes.size() < 8) fail("has " + std::to_string(bytes.size()) + " bytes, less than its header's length takes");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::string about = "a header of " + std::to_string(length) + " bytes, ";
  if (length > kMaxHeader)
    fail(about + "at most " + std::to_string(kMaxHeader) + " are allowed; is it a safetensors file?");
  if (length > bytes.size() - 8)
    fail(about + "but only " + std::to_string(bytes.size() - 8) + " follow; the file is truncated");
  if (length == 0 || bytes[8] != '{') fail("the header does not start with \"{\"; is it a safetensors file?");
  return bytes.substr(8, length);
}

DType parse_dtype(const Json& json) {
  std::string allowed;
  for (int i = 0; i < kDTypeCount; ++i) {
    if (json == kNames[i]) return static_cast<DType>(i);
    allowed += std::string(i > 0 ? ", " : "") + kNames[i];
  }
  fail("dtype " + json.dump() + " is unknown; allowed are " + allowed);
}

Shape parse_shape(const Json& json) {
  Shape sizes;
  if (!json.is_array()) fail("shape " + json.dump() + " is no list of sizes");
  for (const Json& d : json) {
    if (!d.is_number_unsigned() || !std::in_range<std::int64_t>(d.get<std::uint64_t>()))
      fail("shape " + json.dump() + " is no list of sizes");
    sizes.push_back(d.get<std::int64_t>());
  }
  return sizes;
}

Entry parse_entry(const std::string& name, const Json& json, std::string_view data) {
  Entry e{.name = name};
  if (!json.is_object()) fail("its entry is no object");
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!json.contains(key)) fail(std::string("has no \"") + key + "\"");
  if (json.size() != 3) fail("unknown keys in " + json.dump() + "; allowed are dtype, shape, data_offsets");
  e.dtype = parse_dtype(json["dtype"]);
  e.sizes = parse_shape(json["shape"]);

  const Json& offsets = json["data_offsets"];
  const auto is_offset = [](const Json& o) { return o.is_number_unsigned(); };
  if (!offsets.is_array() || offsets.size() != 2 || !std::all_of(offsets.begin(), offsets.end(), is_offset))
    fail("data_offsets " + offsets.dump() + " are not two unsigned integers");
  e.begin = offsets[0].get<std::uint64_t>(), e.end = offsets[1].get<std::uint64_t>();
  if (e.begin > e.end || e.end > data.size())
    fail("data_offsets " + offsets.dump() + " do not lie in order within the " + std::to_string(data.size()) +
         " bytes of data");
  const std::uint64_t bytes = e.end - e.begin;
  if (bytes % size_of(e.dtype) != 0 || bytes / size_of(e.dtype) != static_cast<std::uint64_t>(numel(e.sizes)))
    fail(std::string(kNames[static_cast<int>(e.dtype)]) + " " + to_string(e.sizes) + " does not take the " +
         std::to_string(bytes) + " bytes of data_offsets " + offsets.dump());
  if (const auto held = data.substr(e.begin, bytes);
      e.dtype == DType::bool_ && std::any_of(held.begin(), held.end(), [](unsigned char b) { return b > 1; }))
    fail("a BOOL byte is neither 0 nor 1");
  return e;
}

// Every byte of the data belongs to exactly one tensor.
void check_places(std::vector<Entry> entries, std::uint64_t data_size) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t at = 0;
  for (const Entry& e : entries) {
    if (e.begin != at)
      fail("tensor \"" + e.name + "\": its data starts at byte " + std::to_string(e.begin) +
           (e.begin < at ? ", within another tensor's"
                         : ", but bytes from " + std::to_string(at) + " on belong to none"));
    at = e.end;
  }
  if (at != data_size) fail(std::to_string(data_size - at) + " bytes are left over after the last tensor's data");
}

std::map<std::string, std::string> parse_metadata(const Json& json) {
  if (!json.is_object()) fail("__metadata__ is no object");
  for (const auto& item : json.items())
    if (!item.value().is_string()) fail("__metadata__: \"" + item.key() + "\" is no text");
  return json.get<std::map<std::string, std::string>>();
}

Safetensors parse(std::string_view bytes) {
  const std::string_view header = split_header(bytes);
  const std::string_view data = bytes.substr(8 + header.size());
  Safetensors out;
  std::vector<Entry> entries;
  std::vector<std::string> names;
  const Json json = parse_json(header, names);
  for (const std::string& name : names) {
    if (name == kMetadata) {
      out.metadata = parse_metadata(json[name]);
    } else {
      entries.push_back(in_context("tensor \"" + name + "\"", [&] { return parse_entry(name, json[name], data); }));
    }
  }
  check_places(entries, data.size());
  for (const Entry& e : entries) {
    const Tensor t = empty(e.sizes, {.dtype = e.dtype});
    if (t.nbytes() > 0) std::memcpy(t.raw(), data.data() + e.begin, t.nbytes());
    out.tensors.set(e.name, t);
  }
  return out;
}

// The header, padded so that the data starts at a multiple of 8. Puts the entries into the order of their data.
std::string make_header(std::vector<Entry>& entries, const std::map<std::string, std::string>& metadata) {
  std::vector<Entry*> by_width;  // wide elements first, so that each tensor's data is aligned to its elements
  for (Entry& e : entries) by_width.push_back(&e);
  const auto width = [](const Entry& e) { return size_of(e.tensor.dtype()); };
  std::stable_sort(by_width.begin(), by_width.end(), [&](auto* a, auto* b) { return width(*a) > width(*b); });
  std::uint64_t at = 0;
  for (Entry* e : by_width) e->begin = at, e->end = at += e->tensor.nbytes();

  OrderedJson json = OrderedJson::object();
  auto& object = json.get_ref<OrderedJson::object_t&>();
  if (!metadata.empty()) object.emplace_back(kMetadata, metadata);
  for (const Entry& e : entries) {  // names are unique; looking each up again would take quadratic time
    const Shape& sizes = e.tensor.sizes();
    object.emplace_back(e.name, OrderedJson{{"dtype", kNames[static_cast<int>(e.tensor.dtype())]},
                                            {"shape", std::vector<std::int64_t>(sizes.begin(), sizes.end())},
                                            {"data_offsets", {e.begin, e.end}}});
  }
  std::stable_sort(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  std::string text;
  try {
    text = json.dump();
  } catch (const OrderedJson::exception& e) { fail(std::string("a name or text is not valid UTF-8: ") + e.what()); }
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeader) fail("its header would have " + std::to_string(text.size()) + " bytes");
  return text;
}

}  // namespace

void save_safetensors(const std::string& path, const StateDict& tensors,
                      const std::map<std::string, std::string>& metadata) {
  in_context("save_safetensors: \"" + path + "\"", [&] {
    std::vector<Entry> entries;
    for (const auto& [name, value] : tensors) {
      const auto* t = std::get_if<Tensor>(&value);
      if (!t)
        fail("\"" + name + "\" is " + describe(value) + ", the format has tensors only; save_checkpoint has both");
      if (name == kMetadata) fail("a tensor cannot be called __metadata__, the format uses that name");
      entries.push_back({.name = name, .tensor = t->detach().to(Device::cpu()).contiguous()});
    }
    const std::string header = make_header(entries, metadata);
    const std::uint64_t length = header.size();
    AtomicFile file(path);
    file.write(&length, sizeof length);
    file.write(header);
    for (const Entry& e : entries) file.write(e.tensor.raw(), e.tensor.nbytes());
    file.commit();
  });
}

Safetensors load_safetensors(const std::string& path) { return parse_safetensors(read_file(path), path); }

Safetensors parse_safetensors(std::string_view bytes, const std::string& name) {
  return in_context("safetensors \"" + name + "\"", [&] { return parse(bytes); });
}

}  // namespace gradual
