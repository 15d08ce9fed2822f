#include "safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "atomic_file.h"
#include "input_file.h"

namespace gradual {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's bytes are copied as they are");

using Json = nlohmann::json;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // as the reference implementation has it
constexpr const char* kMetadata = "__metadata__";

constexpr std::pair<DType, const char*> kNames[] = {
    {DType::f64, "F64"},    {DType::f32, "F32"},          {DType::f16, "F16"},
    {DType::bf16, "BF16"},  {DType::f8e4m3fn, "F8_E4M3"}, {DType::f8e5m2, "F8_E5M2"},
    {DType::i64, "I64"},    {DType::i32, "I32"},          {DType::u8, "U8"},
    {DType::bool_, "BOOL"},
};

const char* format_name(DType dtype) {
  return std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& n) { return n.first == dtype; })
      ->second;
}

// Bytes from a file or from memory.
struct Source {
  std::string name;
  std::uint64_t size = 0;
  std::function<void(std::uint64_t offset, void* out, std::size_t count)> read;

  [[noreturn]] void refuse(const std::string& what) const { fail("safetensors \"" + name + "\": " + what); }
  [[noreturn]] void refuse(const std::string& tensor, const std::string& what) const {
    refuse("tensor \"" + tensor + "\": " + what);
  }
};

struct Entry {
  std::string name;
  DType dtype = DType::f32;
  Shape sizes;
  std::uint64_t begin = 0, end = 0;  // bytes from the end of the header
};

// "[json.exception.parse_error.101] parse error at ..." without the bracket.
std::string plain(const Json::exception& e) {
  const std::string text = e.what();
  const std::size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

// Keys of the top object are added to `order`: the order in which the file has them.
Json parse_json(const Source& source, const std::string& text, std::vector<std::string>& order) {
  std::vector<std::set<std::string>> keys(1);
  const auto check = [&](int depth, Json::parse_event_t event, const Json& value) {
    const auto level = static_cast<std::size_t>(depth);
    if (level > 3) source.refuse("the header nests deeper than the format does");
    if (event == Json::parse_event_t::object_start) {
      keys.resize(level + 1);
      keys.emplace_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys[level].insert(key).second) source.refuse("the header has the key " + value.dump() + " twice");
      if (level == 1) order.push_back(key);
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& e) { source.refuse("the header is not valid JSON: " + plain(e)); }
}

std::string read_header(const Source& source) {
  if (source.size < 8)
    source.refuse("has " + std::to_string(source.size) + " bytes, less than its header's length takes");
  std::uint64_t length = 0;
  source.read(0, &length, sizeof length);
  if (length > kMaxHeader)
    source.refuse("a header of " + std::to_string(length) + " bytes, at most " + std::to_string(kMaxHeader) +
                  " are allowed; is it a safetensors file?");
  if (length > source.size - 8)
    source.refuse("a header of " + std::to_string(length) + " bytes, but only " +
                  std::to_string(source.size - 8) + " follow; the file is truncated");
  std::string header(length, '\0');
  source.read(8, header.data(), header.size());
  if (!header.starts_with('{'))
    source.refuse("the header does not start with \"{\"; is it a safetensors file?");
  return header;
}

Shape parse_shape(const Source& source, const std::string& name, const Json& json) {
  const auto is_size = [](const Json& d) {
    return d.is_number_unsigned() && std::in_range<std::int64_t>(d.get<std::uint64_t>());
  };
  if (!json.is_array() || !std::all_of(json.begin(), json.end(), is_size))
    source.refuse(name, "shape " + json.dump() + " is no list of sizes");
  if (json.size() > kMaxDims)
    source.refuse(name, std::to_string(json.size()) + " dimensions; at most " + std::to_string(kMaxDims) +
                            " are allowed");
  Shape sizes;
  std::int64_t product = 1;  // of the sizes that are not 0: strides are such products
  for (const Json& d : json) {
    sizes.push_back(d.get<std::int64_t>());
    if (sizes.back() != 0 && __builtin_mul_overflow(product, sizes.back(), &product))
      source.refuse(name, "shape " + json.dump() + " has too many elements");
  }
  return sizes;
}

Entry parse_entry(const Source& source, const std::string& name, const Json& json, std::uint64_t data_size) {
  Entry e;
  e.name = name;
  if (name.empty()) source.refuse("a tensor has no name");
  if (!json.is_object()) source.refuse(name, "its entry is no object");
  for (const auto& item : json.items()) {
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets")
      source.refuse(name, "unknown key \"" + item.key() + "\"; allowed are dtype, shape, data_offsets");
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!json.contains(key)) source.refuse(name, std::string("has no \"") + key + "\"");
  }

  const Json& dtype = json["dtype"];
  const auto* known =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& n) { return dtype == n.second; });
  if (known == std::end(kNames)) {
    std::string allowed;
    for (const auto& n : kNames) allowed += std::string(allowed.empty() ? "" : ", ") + n.second;
    source.refuse(name, "dtype " + dtype.dump() + " is unknown; allowed are " + allowed);
  }
  e.dtype = known->first;
  e.sizes = parse_shape(source, name, json["shape"]);

  const Json& offsets = json["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned())
    source.refuse(name, "data_offsets " + offsets.dump() + " are not two unsigned integers");
  e.begin = offsets[0].get<std::uint64_t>(), e.end = offsets[1].get<std::uint64_t>();
  if (e.begin > e.end || e.end > data_size)
    source.refuse(name, "data_offsets " + offsets.dump() + " do not lie in order within the " +
                            std::to_string(data_size) + " bytes of data");
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(numel(e.sizes)), size_of(e.dtype), &bytes) ||
      bytes != e.end - e.begin)
    source.refuse(name, std::string(known->second) + " " + to_string(e.sizes) + " takes " +
                            std::to_string(bytes) + " bytes, data_offsets " + offsets.dump() + " give " +
                            std::to_string(e.end - e.begin));
  return e;
}

// Every byte of the data belongs to exactly one tensor.
void check_places(const Source& source, std::vector<Entry> entries, std::uint64_t data_size) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t at = 0;
  const Entry* before = nullptr;
  for (const Entry& e : entries) {
    const std::string from = "its data starts at byte " + std::to_string(e.begin);
    if (e.begin < at) source.refuse(e.name, from + ", within that of \"" + before->name + "\"");
    if (e.begin > at)
      source.refuse(e.name, from + ", but bytes from " + std::to_string(at) + " on belong to no tensor");
    at = e.end;
    before = &e;
  }
  if (at != data_size)
    source.refuse(std::to_string(data_size - at) + " bytes are left over after the last tensor's data");
}

Tensor read_tensor(const Source& source, const Entry& e, std::uint64_t data_start) {
  const Tensor t = empty(e.sizes, {.dtype = e.dtype});
  source.read(data_start + e.begin, t.raw(), t.nbytes());
  if (e.dtype == DType::bool_) {
    const auto* p = static_cast<const unsigned char*>(t.raw());
    const auto* bad = std::find_if(p, p + t.numel(), [](unsigned char b) { return b > 1; });
    if (bad != p + t.numel())
      source.refuse(e.name, "BOOL byte " + std::to_string(*bad) + "; allowed are 0 and 1");
  }
  return t;
}

std::map<std::string, std::string> parse_metadata(const Source& source, const Json& json) {
  if (!json.is_object()) source.refuse("__metadata__ is no object");
  std::map<std::string, std::string> out;
  for (const auto& item : json.items()) {
    if (!item.value().is_string()) source.refuse("__metadata__: \"" + item.key() + "\" is no text");
    out.emplace(item.key(), item.value().get<std::string>());
  }
  return out;
}

Safetensors read(const Source& source) {
  const std::string header = read_header(source);
  const std::uint64_t data_start = 8 + header.size();
  const std::uint64_t data_size = source.size - data_start;
  Safetensors out;
  std::vector<Entry> entries;
  std::vector<std::string> names;
  const Json json = parse_json(source, header, names);
  for (const std::string& name : names) {
    if (name == kMetadata) {
      out.metadata = parse_metadata(source, json[name]);
    } else {
      entries.push_back(parse_entry(source, name, json[name], data_size));
    }
  }
  check_places(source, entries, data_size);
  for (const Entry& e : entries) out.tensors.set(e.name, read_tensor(source, e, data_start));
  return out;
}

// The header, padded so that the data starts at a multiple of 8; fills in the entries' places.
std::string make_header(const std::string& path, std::vector<Entry>& entries,
                        const std::map<std::string, std::string>& metadata) {
  // Wide elements first, so that each tensor's data is aligned to its elements.
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return size_of(entries[a].dtype) > size_of(entries[b].dtype); });
  std::uint64_t at = 0;
  for (const std::size_t i : order) {
    entries[i].begin = at;
    entries[i].end = at += static_cast<std::uint64_t>(numel(entries[i].sizes)) * size_of(entries[i].dtype);
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  auto& object = json.get_ref<nlohmann::ordered_json::object_t&>();
  if (!metadata.empty()) object.emplace_back(kMetadata, metadata);
  for (const Entry& e : entries) {  // names are unique; looking each up again would take quadratic time
    object.emplace_back(
        e.name, nlohmann::ordered_json{{"dtype", format_name(e.dtype)},
                                       {"shape", std::vector<std::int64_t>(e.sizes.begin(), e.sizes.end())},
                                       {"data_offsets", {e.begin, e.end}}});
  }
  try {
    std::string text = json.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    if (text.size() > kMaxHeader)
      fail("save_safetensors: \"" + path + "\" would have a header of " + std::to_string(text.size()) +
           " bytes; at most " + std::to_string(kMaxHeader) + " are allowed");
    return text;
  } catch (const Json::exception& e) {
    fail("save_safetensors: \"" + path + "\": a name or text cannot be written: " + plain(e));
  }
}

}  // namespace

void save_safetensors(const std::string& path, const StateDict& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<Entry> entries;
  std::vector<Tensor> dense;
  for (const auto& [name, value] : tensors) {
    const auto* t = std::get_if<Tensor>(&value);
    if (!t)
      fail("save_safetensors: \"" + name + "\" is " + describe(value) +
           ", the format holds tensors only; save_checkpoint writes both");
    if (name == kMetadata)
      fail("save_safetensors: a tensor cannot be called __metadata__, the format uses that name");
    dense.push_back(t->detach().to(Device::cpu()).contiguous());
    entries.push_back({.name = name, .dtype = t->dtype(), .sizes = t->sizes()});
  }
  const std::string header = make_header(path, entries, metadata);
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return entries[a].begin < entries[b].begin; });

  AtomicFile file(path);
  const std::uint64_t length = header.size();
  file.write(&length, sizeof length);
  file.write(header);
  for (const std::size_t i : order) file.write(dense[i].raw(), dense[i].nbytes());
  file.commit();
}

Safetensors load_safetensors(const std::string& path) {
  const InputFile file(path);
  return read({path, file.size(),
               [&](std::uint64_t offset, void* out, std::size_t n) { file.read(offset, out, n); }});
}

Safetensors parse_safetensors(std::string_view bytes, const std::string& name) {
  return read({name, bytes.size(), [bytes](std::uint64_t offset, void* out, std::size_t n) {
                 if (n > 0) std::memcpy(out, bytes.data() + offset, n);
               }});
}

}  // namespace gradual
