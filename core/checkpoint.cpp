#include "checkpoint.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "input_file.h"
#include "nearest.h"
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

template <class T> T parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) fail(fmt::format("\"{}\" is no number", text));
  return value;
}

// [kind, text]; a double as the shortest decimal that gives it back, or its bits where it is Inf or NaN.
std::pair<const char*, std::string> write_value(const StateValue& value) {
  if (std::holds_alternative<Tensor>(value)) return {"tensor", ""};
  if (const auto* i = std::get_if<std::int64_t>(&value)) return {"i64", std::to_string(*i)};
  if (const auto* u = std::get_if<std::uint64_t>(&value)) return {"u64", std::to_string(*u)};
  if (const auto* s = std::get_if<std::string>(&value)) return {"text", *s};
  const double d = std::get<double>(value);
  if (!std::isfinite(d)) return {"f64 bits", std::to_string(std::bit_cast<std::uint64_t>(d))};
  return {"f64", fmt::format("{}", d)};
}

StateValue read_value(const std::string& kind, const std::string& text) {
  if (kind == "i64") return parse_number<std::int64_t>(text);
  if (kind == "u64") return parse_number<std::uint64_t>(text);
  if (kind == "f64") return parse_number<double>(text);
  if (kind == "f64 bits") return std::bit_cast<double>(parse_number<std::uint64_t>(text));
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
  return std::to_string(crc);
}

Checkpoint read(const Safetensors& file) {
  const auto metadata = [&](const char* key) {
    if (const auto found = file.metadata.find(key); found != file.metadata.end()) return found->second;
    fail(fmt::format("no \"{}\" in its metadata; it is a safetensors file but no training checkpoint", key));
  };
  const int version = parse_number<int>(metadata(kVersionKey));
  if (version < 1 || version > kCheckpointVersion)
    fail(fmt::format("its format version is {}, this library reads versions 1 to {}{}", version, kCheckpointVersion,
                     version > 1 ? "; a newer one wrote it" : ""));
  const std::string values = metadata(kValuesKey);
  const std::string expected = metadata(kCrcKey);
  if (const std::string found = checksum(values, file.tensors); found != expected)
    fail(fmt::format("damaged: its checksum is {}, it was written with {}", found, expected));
  Checkpoint out;
  try {
    for (const Json& part : Json::parse(values)) {
      auto& [name, state] = out.parts.emplace_back(part.at(0).get<std::string>(), StateDict());
      for (const Json& entry : part.at(1)) {
        const auto [key, kind, text] = entry.get<std::array<std::string, 3>>();
        state.set(key, kind == "tensor" ? file.tensors.tensor(name + "." + key) : read_value(kind, text));
      }
    }
  } catch (const Json::exception& e) { fail(std::string("its values are malformed: ") + e.what()); }
  return out;
}

}  // namespace

bool Checkpoint::contains(std::string_view name) const {
  return std::ranges::find(parts, name, &CheckpointParts::value_type::first) != parts.end();
}

const StateDict& Checkpoint::part(std::string_view name) const {
  std::vector<std::string> present;
  for (const auto& [part, state] : parts) {
    if (part == name) return state;
    present.push_back(part);
  }
  fail(fmt::format("checkpoint: no part \"{}\"; it has {}", name, present.empty() ? "none" : join(present)));
}

void save_checkpoint(const std::string& path, const CheckpointParts& parts) {
  in_context("save_checkpoint: \"" + path + "\"", [&] {
    StateDict tensors;
    Json values = Json::array();
    std::set<std::string> seen;
    for (const auto& [name, state] : parts) {
      if (name.empty() || name.find('.') != std::string::npos || !seen.insert(name).second)
        fail(fmt::format("a part is called \"{}\"; each needs a name of its own without '.'", name));
      Json entries = Json::array();
      for (const auto& [key, value] : state) {
        const auto [kind, text] = write_value(value);
        entries.push_back(Json::array({key, kind, text}));
        if (const auto* t = std::get_if<Tensor>(&value))
          tensors.set(name + "." + key, t->detach().to(Device::cpu()).contiguous());
      }
      values.push_back(Json::array({name, std::move(entries)}));
    }
    std::string text;
    try {
      text = values.dump();
    } catch (const Json::exception& e) { fail(std::string("a name or text is not valid UTF-8: ") + e.what()); }
    const std::string crc = checksum(text, tensors);
    save_safetensors(path, tensors,
                     {{kVersionKey, std::to_string(kCheckpointVersion)}, {kValuesKey, text}, {kCrcKey, crc}});
  });
}

Checkpoint load_checkpoint(const std::string& path) { return parse_checkpoint(read_file(path), path); }

Checkpoint parse_checkpoint(std::string_view bytes, const std::string& name) {
  return in_context("checkpoint \"" + name + "\"", [&] { return read(parse_safetensors(bytes, name)); });
}

}  // namespace gradual
