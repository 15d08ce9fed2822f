// Archives made by hand.
#pragma once

#include <gradual/pt2/module.h>
#include <zlib.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test {

using Entries = std::vector<std::pair<std::string, std::string>>;

inline void append(std::string& to, std::uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    to.push_back(static_cast<char>(number & 255));
    number >>= 8;
  }
}

// A zip of stored entries (PKWARE's APPNOTE, sections 4.3.7, 4.3.12 and 4.3.16).
inline std::string zip_of(const Entries& entries) {
  std::string file;
  std::string directory;
  for (const auto& [name, data] : entries) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(data.data());
    std::string common;  // version, flags, method, time, date, checksum, sizes, length of the name, of extra data
    append(common, 20, 2);
    append(common, 0, 8);
    append(common, crc32_z(0, bytes, data.size()), 4);
    append(common, data.size(), 4);
    append(common, data.size(), 4);
    append(common, name.size(), 2);
    append(common, 0, 2);
    append(directory, 0x02014b50, 4);
    append(directory, 20, 2);
    directory += common;
    append(directory, 0, 10);  // comment, disk, attributes
    append(directory, file.size(), 4);
    directory += name;
    append(file, 0x04034b50, 4);
    file += common + name + data;
  }
  std::string end;
  append(end, 0x06054b50, 4);
  append(end, 0, 4);
  append(end, entries.size(), 2);
  append(end, entries.size(), 2);
  append(end, directory.size(), 4);
  append(end, file.size(), 4);
  append(end, 0, 2);
  return file + directory + end;
}

// A node of a graph in JSON: inputs are "name": {argument} pairs.
inline std::string node(const std::string& target, const std::vector<std::pair<std::string, std::string>>& inputs,
                        const std::string& output, int line = 0) {
  std::string json = R"({"target":")" + target + R"(","inputs":[)";
  for (std::size_t i = 0; i < inputs.size(); ++i)
    json += (i ? "," : "") + std::string(R"({"name":")") + inputs[i].first + R"(","arg":)" + inputs[i].second + "}";
  json += R"(],"outputs":[{"as_tensor":{"name":")" + output + R"("}}],"metadata":{)";
  if (line)
    json += R"("stack_trace":"  File \"mine.py\", line )" + std::to_string(line) + R"(, in forward\n    line )" +
            std::to_string(line) + "\"";
  return json + "}}";
}
inline std::string tensor(const std::string& name) { return R"({"as_tensor":{"name":")" + name + R"("}})"; }
inline std::string number(int n) { return R"({"as_int":)" + std::to_string(n) + "}"; }

// A graph of one input x [any, 3] f32.
inline std::string graph_of(const std::vector<std::string>& nodes, const std::vector<std::string>& outputs,
                            int version = 8) {
  std::string json =
      R"({"schema_version":{"major":)" + std::to_string(version) +
      R"(,"minor":1},"torch_version":"2.x","graph_module":{"graph":{"inputs":[{"as_tensor":{"name":"x"}}],)"
      R"("outputs":[],"tensor_values":{"x":{"dtype":7,"sizes":[{"as_expr":{}},{"as_int":3}]}},"nodes":[)";
  for (std::size_t i = 0; i < nodes.size(); ++i) json += (i ? "," : "") + nodes[i];
  json += R"(]},"signature":{"input_specs":[{"user_input":{"arg":{"as_tensor":{"name":"x"}}}}],"output_specs":[)";
  for (std::size_t i = 0; i < outputs.size(); ++i)
    json += (i ? "," : "") + std::string(R"({"user_output":{"arg":)") + tensor(outputs[i]) + "}}";
  return json + "]}}}";
}

inline std::string archive_of(const std::string& graph) { return zip_of({{"m/models/model.json", graph}}); }

inline std::shared_ptr<gradual::pt2::ExportedModule> made(const std::vector<std::string>& nodes,
                                                          const std::vector<std::string>& outputs) {
  return gradual::pt2::load_bytes(archive_of(graph_of(nodes, outputs)), "made.pt2");
}

}  // namespace test
