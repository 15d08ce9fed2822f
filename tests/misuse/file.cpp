#include <gradual/core/files/atomic_file.h>

#include <cmath>

#include "misuse.h"
#include "support/files.h"

using namespace gradual;

namespace test {
namespace {

// Calls f with a path in a folder that is removed afterwards.
template <class F> auto in_folder(F f) {
  const TemporaryFolder folder;
  return f(folder / "file");
}
StateDict one(const std::string& name, const Tensor& value) {
  StateDict state;
  state.set(name, value);
  return state;
}
// The bytes of a good file, changed, and read again.
template <class F> void damaged(F change) {
  in_folder([&](const std::string& path) {
    save_safetensors(path, one("w", ones({2})));
    std::string bytes = read_file(path);
    change(bytes);
    parse_safetensors(bytes, "w.safetensors");
  });
}
void with_header(const std::string& header, std::size_t bytes = 0) {
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  parse_safetensors(file + header + std::string(bytes, '\0'), "h");
}
template <class F> void damaged_checkpoint(F change) {
  in_folder([&](const std::string& path) {
    save_checkpoint(path, {{"model", one("w", ones({2}))}});
    std::string bytes = read_file(path);
    change(bytes);
    parse_checkpoint(bytes, "c");
  });
}
std::string npy(const std::string& header, const std::string& numbers = std::string(8, '\0')) {
  return std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(header.size()) + '\0' + header + numbers;
}
StateDict values() {
  StateDict state;
  state.set("step", 3);
  state.set("lr", 0.5);
  state.set("big", std::uint64_t{1} << 63);
  state.set("kind", std::string("sgd"));
  state.set("w", ones({2}));
  return state;
}

}  // namespace

Misuses file_misuses() {
  return {
      {"a file in a folder that is not there", [] { save_safetensors("/no/w", one("w", ones({2}))); },
       "save_safetensors: \"/no/w\": cannot write \"/no/w\": no file can be made in its folder: No such file or"},
      {"a file that is a folder",
       [] {
         const TemporaryFolder folder;
         save_safetensors(folder.path(), one("w", ones({2})));
       },
       "it is a folder"},
      {"an empty path", [] { save_safetensors("", one("w", ones({2}))); },
       "save_safetensors: \"\": cannot write \"\": rename: No such file or directory"},
      {"a text written to a folder that is not there", [] { write_file_atomically("/no/text", "text"); },
       "cannot write \"/no/text\": no file can be made in its folder: No such file or directory"},
      {"tensors and a number", [] { in_folder([](const std::string& path) { save_safetensors(path, values()); }); },
       "\"step\" is the integer 3, the format has tensors only; save_checkpoint has both"},
      {"a tensor called __metadata__",
       [] { in_folder([](const std::string& path) { save_safetensors(path, one("__metadata__", ones({2}))); }); },
       "a tensor cannot be called __metadata__, the format uses that name"},
      {"a name that is not UTF-8",
       [] { in_folder([](const std::string& path) { save_safetensors(path, one("\xff", ones({2}))); }); },
       "a name or text is not valid UTF-8: invalid UTF-8 byte at index 0:"},
      {"tensors that are not there", [] { load_safetensors("/no/w"); },
       "cannot read \"/no/w\": No such file or directory"},
      {"tensors from a folder", [] { load_safetensors("/"); }, "cannot read \"/\": it is a folder"},
      {"an empty file of tensors", [] { parse_safetensors("", "w"); },
       "safetensors \"w\": has 0 bytes, less than its header's length takes"},
      {"a truncated file of tensors", [] { damaged([](std::string& b) { b.pop_back(); }); },
       "safetensors \"w.safetensors\": tensor \"w\": data_offsets [0,8] do not lie in order within the 7 bytes"},
      {"a file of tensors with a byte too many", [] { damaged([](std::string& b) { b += 'x'; }); },
       "safetensors \"w.safetensors\": 1 bytes are left over after the last tensor's data"},
      {"a file of tensors with a huge header", [] { damaged([](std::string& b) { b[5] = 1; }); },
       "safetensors \"w.safetensors\": a header of 1099511627832 bytes, at most 100000000 are allowed; is it"},
      {"a header that is no JSON", [] { with_header("{"); }, "safetensors \"h\": not JSON: line 1, column 2: syntax"},
      {"a header that is a list", [] { with_header("[]"); },
       "safetensors \"h\": the header does not start with \"{\"; is it a safetensors file?"},
      {"a tensor of an unknown dtype",
       [] { with_header(R"({"w": {"dtype": "F3", "shape": [1], "data_offsets": [0, 4]}})", 4); },
       "safetensors \"h\": tensor \"w\": dtype \"F3\" is unknown; allowed are F64, F32, F16, BF16, F8_E4M3,"},
      {"a tensor of a negative size",
       [] { with_header(R"({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4); },
       "safetensors \"h\": tensor \"w\": shape [-1] is not a list of sizes"},
      {"a tensor beyond the file",
       [] { with_header(R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 4); },
       "safetensors \"h\": tensor \"w\": data_offsets [0,8] do not lie in order within the 4 bytes of data"},
      {"a tensor of too few bytes",
       [] { with_header(R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", 4); },
       "safetensors \"h\": tensor \"w\": f32 [2] does not take the 4 bytes that are there"},
      {"a part without name",
       [] {
         save_checkpoint("/tmp/never", {{"", StateDict()}});
       },
       "save_checkpoint: \"/tmp/never\": a part is called \"\"; each needs a name of its own without '.'"},
      {"a part with a dot",
       [] {
         save_checkpoint("/tmp/never", {{"a.b", StateDict()}});
       },
       "save_checkpoint: \"/tmp/never\": a part is called \"a.b\"; each needs a name of its own without '.'"},
      {"a part twice",
       [] {
         save_checkpoint("/tmp/never", {{"a", StateDict()}, {"a", StateDict()}});
       },
       "save_checkpoint: \"/tmp/never\": a part is called \"a\"; each needs a name of its own without '.'"},
      {"a checkpoint of a text that is not UTF-8",
       [] {
         StateDict state;
         state.set("text", std::string("\xff"));
         save_checkpoint("/tmp/never", {{"a", state}});
       },
       "save_checkpoint: \"/tmp/never\": a name or text is not valid UTF-8: invalid UTF-8 byte"},
      {"a checkpoint that is not there", [] { load_checkpoint("/no/run"); },
       "cannot read \"/no/run\": No such file or directory"},
      {"a checkpoint of plain tensors",
       [] {
         in_folder([](const std::string& path) {
           save_safetensors(path, one("w", ones({2})));
           parse_checkpoint(read_file(path), "plain");
         });
       },
       "checkpoint \"plain\": no \"gradual.checkpoint\" in its metadata; it is a safetensors file but no"},
      {"a checkpoint with a changed bit", [] { damaged_checkpoint([](std::string& b) { b.back() ^= 1; }); },
       "checkpoint \"c\": damaged: its checksum is 2220065190, it was written with 4082413872"},
      {"a checkpoint of a newer version",
       [] {
         damaged_checkpoint([](std::string& b) { b.replace(b.find("checkpoint\":\"1"), 14, "checkpoint\":\"9"); });
       },
       "checkpoint \"c\": its format version is 9, this library reads versions 1 to 1; a newer one wrote it"},
      {"a part that is not there",
       [] {
         in_folder([](const std::string& path) {
           save_checkpoint(path, {{"model", StateDict()}});
           return load_checkpoint(path).part("optimizer").size();
         });
       },
       "checkpoint: no part \"optimizer\"; it has model"},
      {"an array of bf16", [] { in_folder([](const std::string& p) { save_npy(p, ones({2}, DType::bf16)); }); },
       "save_npy: NumPy has no bf16; f32 holds all its values: save_npy(path, t.to(DType::f32)), or write"},
      {"an array that is undefined", [] { in_folder([](const std::string& p) { save_npy(p, Tensor()); }); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"an array that is not there", [] { return load_npy("/no/a.npy"); },
       "cannot read \"/no/a.npy\": No such file or directory"},
      {"an array of nothing", [] { return parse_npy("", "a"); },
       "npy \"a\": does not start with \"\\x93NUMPY\"; it is not an .npy file"},
      {"an array with another start", [] { return parse_npy("PK\x03\x04 and more bytes", "a"); },
       "npy \"a\": does not start with \"\\x93NUMPY\"; it is not an .npy file"},
      {"an array of complex numbers",
       [] { return parse_npy(npy("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }"), "a"); },
       "npy \"a\": dtype '<c8' is not read; allowed are <f8 <f4 <f2 <i8 <i4 <i2 |i1 <u4 <u2 |u1 |b1"},
      {"an array of big-endian numbers",
       [] { return parse_npy(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }"), "a"); },
       "npy \"a\": dtype '>f4' is big-endian; write it as little-endian: a.astype('<f4')"},
      {"an array that is too short",
       [] { return parse_npy(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"), "a"); },
       "npy \"a\": f32 [3] does not take the 8 bytes that are there"},
      {"an array that is too long",
       [] { return parse_npy(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"), "a"); },
       "npy \"a\": f32 [1] does not take the 8 bytes that are there"},
      {"an array of Python objects",
       [] { return parse_npy(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"), "a"); },
       "npy \"a\": dtype '|O' is not read; allowed are <f8 <f4 <f2 <i8 <i4 <i2 |i1 <u4 <u2 |u1 |b1"},
      {"an array with half a header", [] { return parse_npy(npy("{'descr': '<f4'"), "a"); },
       "npy \"a\": header {'descr': '<f4': it is not a dictionary"},
      {"an undefined entry", [] { StateDict().set("w", Tensor()); },
       "state_dict: \"w\" is an undefined tensor; leave the entry out instead"},
      {"an entry that is not there", [] { return values().tensor("weight"); },
       "state_dict: no entry \"weight\" among 5; the nearest is \"big\""},
      {"an entry of an empty state", [] { return values().sub("none").tensor("w"); },
       "state_dict: no entry \"w\"; the state dict is empty"},
      {"a number as tensor", [] { return values().tensor("step"); },
       "state_dict: \"step\" is the integer 3; a tensor was asked for"},
      {"a tensor as number", [] { return values().real("w"); },
       "state_dict: \"w\" is a tensor f32 [2]; a real number was asked for"},
      {"a text as number", [] { return values().real("kind"); },
       "state_dict: \"kind\" is the text \"sgd\"; a real number was asked for"},
      {"a fraction as integer", [] { return static_cast<double>(values().integer("lr")); },
       "state_dict: \"lr\" is the number 0.5; a signed 64-bit integer was asked for"},
      {"too large an integer", [] { return static_cast<double>(values().integer("big")); },
       "state_dict: \"big\" is the unsigned integer 9223372036854775808; a signed 64-bit integer was asked for"},
      {"a large integer as a real number", [] { return values().real("big"); },
       "state_dict: \"big\" is the unsigned integer 9223372036854775808; a real number was asked for"},
      {"a number as text", [] { return values().text("step"); },
       "state_dict: \"step\" is the integer 3; a text was asked for"},
      {"a generator's empty state",
       [] {
         Generator g;
         load_state_dict(g, StateDict());
       },
       "state_dict: no entry \"seed\"; the state dict is empty"},
      {"a generator's negative seed",
       [] {
         Generator g;
         StateDict state = state_dict(g);
         state.set("seed", -1);
         load_state_dict(g, state);
       },
       "state_dict: \"seed\" is the integer -1; an unsigned 64-bit integer was asked for"},
  };
}

}  // namespace test
