#include "primitive.h"

#include <omp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "../support/throwf.h"
#include "reorder.h"

namespace gradual::onednn {
namespace {

bool has(dnnl::cpu_isa isa) {
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & static_cast<unsigned>(isa)) ==
         static_cast<unsigned>(isa);
}

inline constexpr std::size_t kPrimitives = 1024;  // primitives that a thread keeps; when full, it drops them all

// The name of the widest instruction set. Each is a set of bits; one that contains others comes before them.
std::string isa_name() {
  using enum dnnl::cpu_isa;
  static constexpr std::pair<dnnl::cpu_isa, const char*> kNames[] = {{avx512_core_amx, "avx512_core_amx"},
                                                                     {avx512_core_bf16, "avx512_core_bf16"},
                                                                     {avx512_core_vnni, "avx512_core_vnni"},
                                                                     {avx512_core, "avx512_core"},
                                                                     {avx2_vnni, "avx2_vnni"},
                                                                     {avx2, "avx2"},
                                                                     {avx, "avx"},
                                                                     {sse41, "sse41"}};
  for (const auto& [isa, name] : kNames)
    if (has(isa)) return name;
  return "below sse41";
}

const dnnl::stream& stream() {
  thread_local const dnnl::stream own(engine());
  return own;
}

}  // namespace

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

std::string_view description() {
  const dnnl_version_t& v = *dnnl_version();
  static const std::string text = fmt::format("oneDNN {}.{}.{}, {}", v.major, v.minor, v.patch, isa_name());
  return text;
}

bool has_bf16() {
  static const bool bf16 = has(dnnl::cpu_isa::avx512_core_bf16);
  return bf16;
}

Key& Key::add(std::int64_t value) {
  if (n_ == kCapacity) throw_error("internal: the key of a oneDNN primitive is too long");
  values_[n_++] = value;
  return *this;
}
Key& Key::add(const Shape& values) {
  for (const std::int64_t v : values) add(v);
  return *this;
}
bool Key::operator==(const Key& o) const { return std::equal(values_, values_ + n_, o.values_, o.values_ + o.n_); }
std::size_t Key::hash() const {
  std::uint64_t h = 0;
  for (int i = 0; i < n_; ++i) {
    h = (h ^ static_cast<std::uint64_t>(values_[i])) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
  }
  return h;
}

// Reorders between an argument in the caller's layout and scratch memory at byte `offset`.
struct Primitive::Reorder {
  std::size_t argument, offset;
  bool written;
  std::function<void(const void* from, void* to)> run;
};

namespace {

using Desc = dnnl::memory::desc;

// oneDNN 2 has Desc::dims(), oneDNN 3 has get_dims().
template <class D> dnnl::memory::dims sizes_of(const D& layout) {
  if constexpr (requires { layout.get_dims(); }) return layout.get_dims();
  else return layout.dims();
}

bool is_bf16_image(const Desc& layout, dnnl::memory::format_tag tag) {
  const dnnl::memory::dims s = sizes_of(layout);
  const bool whole = s.size() == 4 && s[1] % 16 == 0 && s[2] * s[3] >= 16;
  return whole && layout == Desc(s, dnnl::memory::data_type::bf16, tag);
}

std::function<void(const void*, void*)> reorder(const Desc& from, const Desc& to) {
  using Tag = dnnl::memory::format_tag;
  for (const Tag tag : {Tag::nChw16c, Tag::nhwc})
    for (const bool pack : {false, true}) {
      if (!is_bf16_image(from, pack ? Tag::nchw : tag) || !is_bf16_image(to, pack ? tag : Tag::nchw)) continue;
      const dnnl::memory::dims s = sizes_of(from);
      const BlockLayout layout{s[0], s[1], s[2] * s[3], tag == Tag::nhwc, pack};
      return [layout](const void* f, void* t) { move_blocks(f, t, layout); };
    }
  const dnnl::reorder::primitive_desc how(engine(), from, engine(), to, attributes());
  auto run = std::make_shared<Primitive>(dnnl::reorder(how), how.scratchpad_desc(),
                                         std::vector<Primitive::Argument>{{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  return [run](const void* f, void* t) { run->run({f, t}); };
}

}  // namespace

Primitive::~Primitive() = default;

Primitive::Primitive(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad,
                     std::vector<Argument> arguments)
    : primitive_(primitive), scratch_(scratchpad.get_size()) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Argument& a = arguments[i];
    if (a.as == Argument::As::same || a.given == a.layout) continue;
    const bool written = a.as == Argument::As::written;
    scratch_ = (scratch_ + 63) / 64 * 64;
    reorders_.push_back({i, scratch_, written, written ? reorder(a.layout, a.given) : reorder(a.given, a.layout)});
    scratch_ += a.layout.get_size();
  }
  arguments.push_back({DNNL_ARG_SCRATCHPAD, scratchpad});
  for (const Argument& a : arguments) {
    memories_.emplace_back(a.layout, engine(), nullptr);
    arguments_.push_back({a.name, memories_.back().get()});
  }
}

void Primitive::run(std::initializer_list<const void*> data) {
  run({data.begin(), memories_.size() - 1}, std::array<std::int64_t, 8>{}, 1);
}

void Primitive::run(std::span<const void* const> data, std::span<const std::int64_t> steps, std::int64_t parts,
                    const Around& before, const Around& after) {
  const Scratch scratch(scratch_);
  const auto given = [&](std::size_t i, std::int64_t part) {
    return const_cast<char*>(static_cast<const char*>(data[i]) + (steps[i] == kAnew ? 0 : part * steps[i]));
  };
  memories_[data.size()].set_data_handle(scratch.data());
  for (std::int64_t part = 0; part < parts; ++part) {
    if (before) before(part);
    for (std::size_t i = 0; i < data.size(); ++i) memories_[i].set_data_handle(given(i, part));
    for (const Reorder& r : reorders_) {
      void* const own = scratch.as<char>() + r.offset;
      if (!r.written && (part == 0 || steps[r.argument] != 0)) r.run(given(r.argument, part), own);
      memories_[r.argument].set_data_handle(own);
    }
    const dnnl_status_t status = dnnl_primitive_execute(primitive_.get(), stream().get(),
                                                        static_cast<int>(arguments_.size()), arguments_.data());
    if (status != dnnl_success) throwf("oneDNN failed with status {}", static_cast<int>(status));
    for (const Reorder& r : reorders_)
      if (r.written) r.run(scratch.as<char>() + r.offset, given(r.argument, part));
    if (after) after(part);
  }
}

Team::Team(int threads) : saved_(omp_get_max_threads()) {
  if (threads != saved_) omp_set_num_threads(threads);
}
Team::~Team() {
  if (omp_get_max_threads() != saved_) omp_set_num_threads(saved_);
}

Primitive* find(const Key& key, const Make& make) {
  using Hash = decltype([](const Key& of) { return of.hash(); });
  thread_local std::unordered_map<Key, std::unique_ptr<Primitive>, Hash> own;
  if (const auto it = own.find(key); it != own.end()) return it->second.get();
  std::unique_ptr<Primitive> made;
  try {
    made = make();
  } catch (const dnnl::error& e) {
    if (e.status != dnnl_unimplemented) throwf("oneDNN could not make a primitive: {}", e.what());
  }
  if (own.size() >= kPrimitives) own.clear();
  return own.emplace(key, std::move(made)).first->second.get();
}

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc layout_of(const Shape& sizes, const Shape& strides, DType dtype) {
  return {dnnl::memory::dims(sizes.begin(), sizes.end()), type_of(dtype),
          dnnl::memory::dims(strides.begin(), strides.end())};
}

DType product_dtype(DType dtype) {
  return has_bf16() && (dtype == DType::bf16 || is_f8(dtype)) ? DType::bf16 : DType::f32;
}

bool is_fast(std::string_view implementation) { return !implementation.starts_with("ref"); }

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

}  // namespace gradual::onednn
