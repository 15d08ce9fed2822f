#include "quantized_formats.h"

#include "../core/files/input_file.h"
#include "../core/files/npy.h"
#include "json/quantization.h"

namespace gradual::amp {

Format load_format(const std::string& path) {
  return in_context("format file " + path, [&] {
    if (path.ends_with(".npy")) {
      const Tensor t = load_npy(path);
      if (t.dim() != 1 || !t.is_floating())
        throwf("allowed is one dim of f32 or f64, not {} {}", to_string(t.dtype()), to_string(t.sizes()));
      const std::size_t slash = path.rfind('/') + 1;  // 0 without a slash
      return table_format({.name = path.substr(slash, path.size() - slash - 4), .values = t.to_vector<float>()});
    }
    const Json json = Json::parse(read_file(path), nullptr, false);
    if (!json.is_object()) throw_error("allowed is a JSON object with name and values");
    return table_of({json, "the table"});
  });
}

Format table_of(const JsonReader& reader) {
  ValueTable table;
  reader.need("name");
  reader.need("values");
  reader.read_fields(table);
  return table_format(std::move(table));
}

}  // namespace gradual::amp
