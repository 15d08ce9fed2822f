#include "checkpoint_file.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "../support/message_text.h"
#include "../support/throwf.h"
#include "input_file.h"
#include "json_text.h"
#include "safetensors.h"

// In the file's metadata: "gradual.checkpoint" the version, "gradual.values" a JSON list that has for each part
// [name, [[entry, value], ...]] in order, and "gradual.crc32". A tensor's value is null.
namespace gradual {
namespace {

using Json = nlohmann::json;

constexpr const char* kVersionKey = "gradual.checkpoint";
constexpr const char* kValuesKey = "gradual.values";
constexpr const char* kCrcKey = "gradual.crc32";

Json to_json(const StateValue& value) {
  if (const auto* d = std::get_if<double>(&value); d && !std::isfinite(*d))  // JSON has no number for it
    return {{"f64 bits", std::bit_cast<std::uint64_t>(*d)}};
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::convertible_to<decltype(v), Json>) return v;
        else return nullptr;
      },
      value);
}

StateValue from_json(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_object()) return std::bit_cast<double>(json.at("f64 bits").get_ref<const std::uint64_t&>());
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX) return json.get<std::uint64_t>();
  return json.get<std::int64_t>();
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
    throwf("no \"{}\" in its metadata; it is a safetensors file but no training checkpoint", key);
  };
  Checkpoint out;
  try {
    const std::string written = metadata(kVersionKey);
    const std::int64_t version = Json::parse(bounded_json(written)).get_ref<const std::int64_t&>();
    if (version < 1 || version > kCheckpointVersion)
      throwf("its format version is {}, this library reads versions 1 to {}{}", version, kCheckpointVersion,
             version > 1 ? "; a newer one wrote it" : "");
    const std::string values = metadata(kValuesKey);
    const std::string expected = metadata(kCrcKey);
    if (const std::string found = checksum(values, file.tensors); found != expected)
      throwf("damaged: its checksum is {}, it was written with {}", found, expected);
    for (const Json& part : Json::parse(bounded_json(values))) {
      auto& [name, state] = out.parts.emplace_back(part.at(0), StateDict());
      for (const Json& entry : part.at(1)) {
        const std::string key = entry.at(0);
        state.set(key, entry.at(1).is_null() ? file.tensors.tensor(name + "." + key) : from_json(entry.at(1)));
      }
    }
  } catch (const Json::exception& e) { throw_error(std::string("its metadata is malformed: ") + e.what()); }
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
  throwf("checkpoint: no part \"{}\"; it has {}", name, present.empty() ? "none" : join(present));
}

void save_checkpoint(const std::string& path, const CheckpointParts& parts) {
  StateDict tensors;
  std::string text, crc;
  in_context("save_checkpoint: \"" + path + "\"", [&] {
    Json values = Json::array();
    std::set<std::string> seen;
    for (const auto& [name, state] : parts) {
      if (name.empty() || name.find('.') != std::string::npos || !seen.insert(name).second)
        throwf("a part is called \"{}\"; each needs a name of its own without '.'", name);
      Json entries = Json::array();
      for (const auto& [key, value] : state) {
        entries.push_back(Json::array({key, to_json(value)}));
        if (const auto* t = std::get_if<Tensor>(&value))
          tensors.set(name + "." + key, t->detach().to(Device::cpu()).contiguous());
      }
      values.push_back(Json::array({name, std::move(entries)}));
    }
    try {
      text = values.dump();
    } catch (const Json::exception& e) {
      throw_error(std::string("a name or text is not valid UTF-8: ") + json_problem(e));
    }
    crc = checksum(text, tensors);
  });
  save_safetensors(path, tensors,  // its errors name the file
                   {{kVersionKey, std::to_string(kCheckpointVersion)}, {kValuesKey, text}, {kCrcKey, crc}});
}

Checkpoint load_checkpoint(const std::string& path) { return parse_checkpoint(read_file(path), path); }

Checkpoint parse_checkpoint(std::string_view bytes, const std::string& name) {
  const Safetensors file = parse_safetensors(bytes, name);  // its errors name the file
  return in_context("checkpoint \"" + name + "\"", [&] { return read(file); });
}

}  // namespace gradual
