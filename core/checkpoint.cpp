#include "checkpoint.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "safetensors.h"

// In the file's metadata: "gradual.checkpoint" the version, "gradual.values" a JSON list that has for each part
// [name, [[entry, kind, value], ...]] in order, and "gradual.crc32". Numbers are texts: JSON readers disagree about
// large integers and have no NaN.
namespace gradual {
namespace {

using Json = nlohmann::json;

constexpr const char* kVersionKey = "gradual.checkpoint";
constexpr const char* kValuesKey = "gradual.values";
constexpr const char* kCrcKey = "gradual.crc32";

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  fail("checkpoint \"" + file + "\": " + what);
}

template <class T> T parse_number(std::string_view text, int base = 10) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size())
    fail("\"" + std::string(text) + "\" is no number");
  return value;
}

std::string hexadecimal(std::uint64_t value) {
  char buffer[16];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value, 16).ptr};
}

// The shortest decimal that gives the same double back; the bits of Inf and NaN.
std::string write_double(double value) {
  if (!std::isfinite(value)) return "0x" + hexadecimal(std::bit_cast<std::uint64_t>(value));
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

double read_double(std::string_view text) {
  if (text.starts_with("0x")) return std::bit_cast<double>(parse_number<std::uint64_t>(text.substr(2), 16));
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    fail("\"" + std::string(text) + "\" is no number");
  return value;
}

struct WriteValue {
  std::pair<const char*, std::string> operator()(const Tensor&) const { return {"tensor", ""}; }
  std::pair<const char*, std::string> operator()(std::int64_t v) const { return {"i64", std::to_string(v)}; }
  std::pair<const char*, std::string> operator()(std::uint64_t v) const { return {"u64", std::to_string(v)}; }
  std::pair<const char*, std::string> operator()(double v) const { return {"f64", write_double(v)}; }
  std::pair<const char*, std::string> operator()(const std::string& v) const { return {"text", v}; }
};

StateValue read_value(const std::string& kind, const std::string& text, const Tensor& tensor) {
  if (kind == "tensor") return tensor;
  if (kind == "i64") return parse_number<std::int64_t>(text);
  if (kind == "u64") return parse_number<std::uint64_t>(text);
  if (kind == "f64") return read_double(text);
  if (kind == "text") return text;
  fail("unknown kind \"" + kind + "\"");
}

// Over the values' text and each tensor's name, dtype, shape and bytes, in order.
std::string checksum(const std::string& values, const StateDict& tensors) {
  uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(values.data()), values.size());
  for (const auto& [name, value] : tensors) {
    const Tensor& t = std::get<Tensor>(value);
    const std::string about = name + " " + describe(value) + "\n";
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(about.data()), about.size());
    if (t.numel() > 0) crc = crc32_z(crc, static_cast<const Bytef*>(t.raw()), t.nbytes());
  }
  return hexadecimal(crc);
}

void check_part_names(const std::string& path, const CheckpointParts& parts) {
  std::set<std::string> seen;
  for (const auto& [name, state] : parts) {
    if (name.empty() || name.find('.') != std::string::npos)
      fail("save_checkpoint: \"" + path + "\": a part is called \"" + name +
           "\"; it needs a name without '.'");
    if (!seen.insert(name).second)
      fail("save_checkpoint: \"" + path + "\": two parts are called \"" + name + "\"");
  }
}

const std::string& metadata(const Safetensors& file, const char* key, const std::string& path) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end())
    refuse(path, "no \"" + std::string(key) +
                     "\" in its metadata; it is a safetensors file but no training checkpoint");
  return found->second;
}

CheckpointParts read_parts(const std::string& values, const StateDict& tensors) {
  CheckpointParts parts;
  std::size_t used = 0;
  for (const Json& part : Json::parse(values)) {
    const auto& name = part.at(0).get_ref<const std::string&>();
    StateDict state;
    for (const Json& entry : part.at(1)) {
      const auto& key = entry.at(0).get_ref<const std::string&>();
      const auto& kind = entry.at(1).get_ref<const std::string&>();
      const Tensor tensor = kind == "tensor" ? tensors.tensor(name + "." + key) : Tensor();
      state.set(key, read_value(kind, entry.at(2).get_ref<const std::string&>(), tensor));
      used += kind == "tensor" ? 1 : 0;
    }
    parts.emplace_back(name, std::move(state));
  }
  if (used != tensors.size()) fail("it has " + std::to_string(tensors.size() - used) + " tensors of no part");
  return parts;
}

Checkpoint read(const Safetensors& file, const std::string& path) {
  const std::string& version = metadata(file, kVersionKey, path);
  int number = 0;
  try {
    number = parse_number<int>(version);
  } catch (const Error&) { refuse(path, "its format version \"" + version + "\" is no number"); }
  if (number < 1 || number > kCheckpointVersion)
    refuse(path, "its format version is " + version + ", this library reads versions 1 to " +
                     std::to_string(kCheckpointVersion) + (number > 1 ? "; a newer one wrote it" : ""));
  const std::string& values = metadata(file, kValuesKey, path);
  const std::string& expected = metadata(file, kCrcKey, path);
  if (const std::string found = checksum(values, file.tensors); found != expected)
    refuse(path, "damaged: its checksum is " + found + ", it was written with " + expected);
  try {
    return {read_parts(values, file.tensors)};
  } catch (const Json::exception& e) {
    refuse(path, std::string("its values are malformed: ") + e.what());
  } catch (const Error& e) { refuse(path, std::string("its values are malformed: ") + e.what()); }
}

}  // namespace

bool Checkpoint::contains(std::string_view name) const {
  return std::any_of(parts.begin(), parts.end(), [&](const auto& p) { return p.first == name; });
}

const StateDict& Checkpoint::part(std::string_view name) const {
  std::string present;
  for (const auto& [part, state] : parts) {
    if (part == name) return state;
    present += (present.empty() ? "" : ", ") + part;
  }
  fail("checkpoint: no part \"" + std::string(name) + "\"; it has " + (present.empty() ? "none" : present));
}

void save_checkpoint(const std::string& path, const CheckpointParts& parts) {
  check_part_names(path, parts);
  StateDict tensors;
  Json values = Json::array();
  for (const auto& [name, state] : parts) {
    Json entries = Json::array();
    for (const auto& [key, value] : state) {
      const auto [kind, text] = std::visit(WriteValue{}, value);
      entries.push_back({key, kind, text});
      if (const auto* t = std::get_if<Tensor>(&value))
        tensors.set(name + "." + key, t->detach().to(Device::cpu()).contiguous());
    }
    values.push_back({name, std::move(entries)});
  }
  std::string text;
  try {
    text = values.dump();
  } catch (const Json::exception&) {
    fail("save_checkpoint: \"" + path + "\": a name or text is not valid UTF-8");
  }
  save_safetensors(path, tensors,
                   {{kVersionKey, std::to_string(kCheckpointVersion)},
                    {kValuesKey, text},
                    {kCrcKey, checksum(text, tensors)}});
}

Checkpoint load_checkpoint(const std::string& path) { return read(load_safetensors(path), path); }

Checkpoint parse_checkpoint(std::string_view bytes, const std::string& name) {
  return read(parse_safetensors(bytes, name), name);
}

}  // namespace gradual
