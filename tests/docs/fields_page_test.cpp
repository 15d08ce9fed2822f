// docs/formats.md, "Every field": each field of a recipe with a recipe that uses it, the test with its independent
// reference, and its source. The recipes must exist and use the field, and the tests must exist.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/amp/recipe.h>
#include <gradual/lab/training.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "page_part.h"

using namespace gradual;
using namespace gradual::test;
using Json = nlohmann::json;

namespace {

struct FieldRow {
  const char* about;
  std::vector<const char*> keys;  // of precision.md; the recipe uses each
  const char* recipe;             // its name, or its JSON without the name
  const char* folder;             // of tests/
  const char* test;               // the name of the case, or its beginning
  const char* source;
};

const FieldRow kFields[] = {
    {"operands of products",
     {"forward_x", "forward_w", "dgrad_dy", "dgrad_w", "wgrad_x", "wgrad_dy", "quantization", "format"},
     "mxfp8",
     "amp",
     "matmul, forward and both gradients, under every kind of scaling",
     "OCP MX 1.0"},
    {"rounding of numbers",
     {"rounding"},
     "nvfp4",
     "core/formats",
     "floats at every boundary of every format, all modes and policies",
     "IEEE 754; arXiv 1502.02551"},
    {"rounding at random",
     {"rounding"},
     "mxfp4-backward",
     "core/formats",
     "stochastic rounding goes up where the random word exceeds the distance",
     "arXiv 1502.02551, 2502.20586"},
    {"what is beyond the largest value",
     {"overflow"},
     R"("base": "fp8-current", "quantization": {"overflow": "saturate-finite"})",
     "amp",
     "the loss scale sees an infinite gradient that operands saturate, and one that saturate-finite hands on",
     "OFP8 1.0"},
    {"one scale, of a tensor or a row",
     {"scaling"},
     "fp8-rowwise",
     "core/quantize",
     "every quantizer follows its definition, in every layout and dtype",
     "arXiv 2209.05433"},
    {"delayed scales",
     {"scaling"},
     "fp8-delayed",
     "core/quantize",
     "delayed scaling: an amax of 0, Inf or NaN keeps the scale, a scale of Inf becomes the largest float",
     "Transformer Engine"},
    {"rounding of scales: powers of two",
     {"scaling"},
     "mxfp4-backward",
     "core/quantize",
     "the scales of MX",
     "OCP MX 1.0; torchao"},
    {"rounding of scales: codes of a format",
     {"scaling"},
     "nvfp4",
     "core/quantize",
     "the formulas of NVFP4",
     "NVIDIA 2025"},
    {"rounding of scales: at random",
     {"scaling"},
     "quartet2",
     "core/quantize",
     "MS-EDEN: elements to nearest, scales times <x, x> / <x, Q(x)> of the group at random",
     "arXiv 2601.22813"},
    {"scales searched per block",
     {"scaling"},
     "nvfp4-4over6",
     "core/quantize",
     "four-over-six takes the better of two scales of a block",
     "arXiv 2512.02010"},
    {"scales of outer blocks",
     {"scaling"},
     "tetrajet-v2",
     "core/quantize",
     "double blocks: an f32 scale of 128 elements of a row, under it an e4m3 scale of 16",
     "arXiv 2510.27527"},
    {"scales of parts of blocks",
     {"scaling"},
     "hif4",
     "core/quantize",
     "shared microexponents: pairs under an exponent of 16, and HiFloat4, by the papers",
     "arXiv 2302.08007, 2604.08826"},
    {"zero points",
     {"scaling"},
     "int8-asym",
     "core/quantize",
     "zero points of a tensor, of rows, blocks and tiles, by the formula",
     "arXiv 1712.05877"},
    {"product with the scale",
     {"scaling"},
     R"("base": "fp8-current", "quantization": {"forward_x": {"scaling": {"kind": "tensor", "product": "rounded"}}})",
     "core/quantize",
     "a scaled element is rounded once, or by way of f32 by choice",
     "Transformer Engine, torchao"},
    {"learned scales",
     {"scaling"},
     "int4-lsq",
     "amp",
     "learned steps begin as LSQ says, and their gradients are LSQ's",
     "arXiv 1902.08153"},
    {"clipped gradient",
     {"gradient"},
     "mxfp4-clipped",
     "core/quantize",
     "clipped: 0 beyond the largest and the lowest value, symmetric or not",
     "arXiv 1805.06085"},
    {"differentiable gradient",
     {"gradient"},
     "e2m1-dge",
     "core/quantize",
     "differentiable: the derivative of a smooth step between neighbours, by differences",
     "arXiv 2501.17116"},
    {"Hadamard transform",
     {"hadamard"},
     "mxfp4-backward",
     "amp",
     "the Hadamard transform is orthogonal: it changes what is rounded, not the product",
     "arXiv 2502.20586"},
    {"its signs, drawn",
     {"signs"},
     "quartet2",
     "amp",
     "drawn signs: both operands of a product have the same, each product others",
     "arXiv 2601.22813"},
    {"mean subtracted",
     {"center"},
     "mxfp4-centered",
     "amp",
     "center: the mean over samples is subtracted before rounding and made up for, in all three products",
     "arXiv 2603.10444"},
    {"Smooth-SwiGLU",
     {"smooth"},
     "fp8-smooth",
     "amp",
     "smooth: each channel of x has a power of two, in forward and wgrad, and the product is made up for",
     "arXiv 2409.12517"},
    {"outlier channels",
     {"outliers"},
     "tetrajet-v2",
     "amp",
     "outlier channels: forward and the gradient of W have them in the wider format, the gradient of x not",
     "arXiv 2510.27527"},
    {"backward from forward's codes",
     {"requantize"},
     R"("base": "mxfp8", "quantization": {"requantize": true})",
     "amp",
     "requantize: backward rounds the numbers that forward's codes stand for",
     "arXiv 2601.22813"},
    {"operands kept as codes",
     {"save_codes"},
     R"("base": "fp8-current", "quantization": {"save_codes": false})",
     "amp",
     "operands with one scale per tensor are kept as codes, others as they are; the gradients are the same",
     "Transformer Engine"},
    {"attention's inside",
     {"attention"},
     "fp8-attention",
     "amp",
     "attention in blocks: every format is where the definition has it",
     "arXiv 2205.14135, 2505.20524"},
    {"attention's shifted maximum",
     {"attention"},
     "bf16-flash-shifted",
     "amp",
     "attention in blocks: the shifted maximum leaves no P of 1 where it repeats",
     "arXiv 2510.04212"},
    {"attention's transforms",
     {"attention", "hadamard"},
     "mxfp4-attention-hadamard",
     "amp",
     "attention's transforms: the bits of loops over numbers",
     "arXiv 2407.08608"},
    {"attention's delayed scales",
     {"attention", "scaling"},
     "fp8-attention-delayed",
     "amp",
     "attention's delayed scales: the bits of loops over numbers, whose scales are those of the step before",
     "Transformer Engine"},
    {"rounding of sums",
     {"accumulator"},
     R"("base": "fp8-current", "quantization": {"accumulator": "hopper-fp8"})",
     "core/formats",
     "tensor and matrix cores add up as MMA-Sim says",
     "arXiv 2412.19437, 2511.10909"},
    {"rounding of products",
     {"accumulator"},
     R"("base": "fp8-current", "quantization": {"accumulator": "f32/product=bf16"})",
     "core/formats",
     "a product of its own format is rounded before it is added, and terms of sums are no products",
     "MPTorch"},
    {"results of ops",
     {"result"},
     "pure:e5m7",
     "amp",
     "a result is rounded once: the op's own, and that of a quantised product after its scales",
     "QPyTorch"},
    {"weights and gradients of weights",
     {"weight_gradient", "weight"},
     "msamp-o1",
     "amp",
     "MS-AMP keeps weights on f16's grid, gradients on e4m3's and Adam's moments as codes",
     "arXiv 2310.18313"},
    {"masters in few bits",
     {"master"},
     R"("base": "bf16-master", "quantization": {"master": {"format": "e5m10"}})",
     "amp",
     "a quantizer of masters rounds them after each step, and parameters follow",
     "arXiv 2310.18313"},
    {"maps of the optimizer's state",
     {"moment1", "moment2"},
     "adam8",
     "optim",
     "the dynamic maps of 8-bit optimizers have the values of bitsandbytes",
     "arXiv 2110.02861"},
    {"linear codes of momentum",
     {"moment1"},
     "muon8",
     "optim",
     "Muon with its momentum in linear codes of 8 bits follows that of f32 and resumes to the bit",
     "arXiv 2509.23106"},
    {"recipes of modules",
     {"modules"},
     R"("base": "mxfp8", "quantization": {"modules": {"last": "fp32"}})",
     "amp",
     "a module follows the recipe that is named for it",
     "arXiv 2412.19437"},
    {"dtypes of a model and of ops",
     {"mode", "dtype", "policy"},
     R"("base": "amp-fp16", "policy": {"softmax": "f16"})",
     "amp",
     "amp-fp16 and fp16-master are the loops written by hand, bit for bit",
     "arXiv 1710.03740"},
    {"TF32", {"tf32"}, "tf32", "amp", "tf32 holds in forward and backward and nowhere else", "NVIDIA 2020"},
    {"masters",
     {"masters"},
     "bf16-master",
     "optim",
     "masters are an f32 run to the bit, rounded into the parameter",
     "arXiv 1710.03740"},
    {"Kahan's updates",
     {"update"},
     R"("base": "bf16-master", "masters": "none", "update": "kahan")",
     "optim",
     "Kahan's updates: the bits of loops over numbers",
     "arXiv 2010.06192"},
    {"stochastic updates",
     {"update"},
     R"("base": "bf16-master", "masters": "none", "update": "stochastic")",
     "optim",
     "stochastic updates: the bits of loops over numbers",
     "arXiv 2010.06192, 2502.20566"},
    {"updates that the momentum keeps (ECO)",
     {"update"},
     "eco-fp8",
     "optim",
     "eco: SGD's momentum takes what rounding the weight loses",
     "arXiv 2601.22101"},
    {"weights that oscillate",
     {"oscillation_reset"},
     "tetrajet-v2",
     "amp",
     "oscillation reset: what goes four times as far rounded as it goes itself is set to its bin's centre",
     "arXiv 2510.27527"},
    {"the optimizer's arithmetic and state",
     {"optimizer_state"},
     "bf16-pure",
     "optim",
     "pure Adam rounds after every operation",
     "arXiv 2010.06192"},
    {"where gradients add up",
     {"gradients"},
     R"("base": "bf16-pure", "gradients": "stochastic")",
     "autograd",
     "gradient sums: rounded at random, the sum is right on average, in the storage dtype, the same again",
     "arXiv 1502.02551"},
    {"where averages of weights are kept",
     {"averages"},
     R"("base": "bf16-pure", "averages": "storage")",
     "lab",
     "averages in f32 and in the dtype of the weights: the bits of loops over numbers",
     "Polyak and Juditsky 1992"},
    {"loss scale",
     {"scaling"},
     "fp16-static:128",
     "optim",
     "the scale grows after an interval of clean steps and backs off at an overflow",
     "arXiv 1710.03740"},
    {"phases by steps",
     {"schedule"},
     R"("base": "mxfp8", "schedule": [{"last": 0.1, "recipe": "fp32"}])",
     "amp",
     "schedule: a phase begins with its step, and its products are those of its recipe",
     "NVIDIA 2025"},
    {"phases that a measurement begins",
     {"schedule"},
     R"("base": "nvfp4", "schedule": [{"when": {"quantity": "gradient_to_noise", "below": 1.732}, "recipe": "fp32"}])",
     "amp",
     "measured phases: gradient to noise is that of products with and without rounding",
     "arXiv 2505.19115"},
    {"exchange of gradients",
     {"exchange"},
     R"("base": "fp32", "exchange": "bf16/ring")",
     "dist",
     "exchanges in bf16: the bits of loops over numbers, by ring, tree and gather",
     "arXiv 2310.18313"},
};

// Optimizers of the lab and layers of nn/ that papers on low precision use. They are no fields of a recipe.
struct OptionRow {
  const char* about;
  const char* option;  // of gradual-lab, or a class
  const char* page;    // that names it
  const char* folder;
  const char* test;
  const char* source;
};

const OptionRow kOptions[] = {
    {"Adam and AdamW", "`adamw`", "lab.md", "optim", "Adam and AdamW follow their formulas", "arXiv 1711.05101"},
    {"SGD", "`sgd`", "lab.md", "optim", "SGD follows its formula", "Sutskever et al. 2013"},
    {"SOAP", "`soap`", "lab.md", "optim", "SOAP follows its paper, written in loops", "arXiv 2409.11321"},
    {"Lion", "`lion`", "lab.md", "optim", "Lion written with ops follows its paper's formula", "arXiv 2302.06675"},
    {"Muon", "`muon`", "lab.md", "optim", "RMSprop and Muon written with ops take PyTorch's steps", "Jordan 2024"},
    {"AMSGrad", "`optim::AmsGrad`", "from-pytorch.md", "optim",
     "amsgrad follows PyTorch's formula, with L2 and decoupled decay", "arXiv 1904.09237"},
    {"clipping of gradients", "`--clip NORM`", "lab.md", "optim",
     "clip_grad_norm_ scales all gradients by one factor and returns the norm before", "arXiv 1211.5063"},
    {"unit scaling", "`nn/unit_scaling.h`", "papers.md", "nn",
     "UnitLinear: products of size 1, their results multiplied", "arXiv 2407.17465"},
    {"router of a mixture of experts", "`--model moe-gpt`", "lab.md", "nn",
     "a recipe's modules leave the router out, which then has f32's logits and choices", "arXiv 2101.03961"},
};

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The sources of a folder of tests/, where the parts of a name that spans lines are joined.
std::string tests_of(const std::string& folder) {
  static const std::regex kBreak(R"("\n\s*")");
  std::string all;
  for (const auto& file : std::filesystem::directory_iterator(source_dir() + "/tests/" + folder))
    if (file.path().extension() == ".cpp") all += text_of(file.path());
  return std::regex_replace(all, kBreak, "");
}

bool has_case(const std::string& folder, const std::string& name) {
  static const std::regex kSpaces(R"(TEST_CASE\(\s*)");
  const std::string sources = std::regex_replace(tests_of(folder), kSpaces, "TEST_CASE(");
  return sources.find("TEST_CASE(\"" + name + "\"") != std::string::npos;
}

amp::Recipe recipe_of(const std::string& recipe) {
  if (recipe.find('"') == std::string::npos) return amp::recipe(recipe);
  return amp::recipe_from_json("{\"name\": \"mine\", " + recipe + "}");
}

// The values of a key, wherever it stands in the file.
void collect(const Json& file, const std::string& key, std::vector<Json>& values) {
  if (!file.is_structured()) return;
  if (file.is_object() && file.contains(key)) values.push_back(file[key]);
  for (const auto& inner : file) collect(inner, key, values);
}

std::vector<Json> values_of(const std::string& recipe, const std::string& key) {
  std::vector<Json> values;
  collect(Json::parse(amp::to_json(recipe_of(recipe))), key, values);
  return values;
}

// Whether the recipe says something of a key that plain f32 does not.
bool uses(const std::string& recipe, const std::string& key) {
  const std::vector<Json> plain = values_of("fp32", key);
  const std::vector<Json> here = values_of(recipe, key);
  return std::ranges::any_of(
      here, [&](const Json& value) { return value != Json("none") && std::ranges::find(plain, value) == plain.end(); });
}

std::string in_quotes(const std::vector<const char*>& keys) { return fmt::format("`{}`", fmt::join(keys, "`, `")); }

std::string fields() {
  std::string text = table_head({"what", "field", "recipe", "reference: a case of tests/", "source"});
  for (const FieldRow& f : kFields)
    text +=
        table_row({f.about, in_quotes(f.keys), fmt::format("`{}`", f.recipe),
                   fmt::format("`{}`: {}", f.folder, std::regex_replace(f.test, std::regex("<|>"), "\\$&")), f.source});
  for (const OptionRow& o : kOptions)
    text += table_row({o.about, "", o.option, fmt::format("`{}`: {}", o.folder, o.test), o.source});
  return text;
}

// The keys of the tables of docs/precision.md that say what a recipe's file may hold.
std::vector<std::string> keys_of_files() {
  static const std::regex kKey("`([a-z_0-9]+)`");
  const std::string page = text_of(source_dir() + "/docs/precision.md");
  std::vector<std::string> keys;
  for (std::size_t at = page.find("| key | values |\n"); at != std::string::npos;
       at = page.find("| key | values |\n", at + 1)) {
    std::istringstream rows(page.substr(at, page.find("\n\n", at) - at));
    std::string row;
    while (std::getline(rows, row)) {
      const std::string first = row.substr(0, row.find('|', 1));
      for (std::sregex_iterator key(first.begin(), first.end(), kKey), end; key != end; ++key)
        keys.push_back((*key)[1].str());
    }
  }
  return keys;
}

}  // namespace

TEST_CASE("docs/formats.md: every field has a recipe that uses it and a test with its reference") {
  for (const FieldRow& f : kFields) {
    CAPTURE(f.about);
    for (const char* key : f.keys) CHECK_MESSAGE(uses(f.recipe, key), key);
    CHECK_MESSAGE(has_case(f.folder, f.test), f.test);
  }
  for (const OptionRow& o : kOptions) {
    CAPTURE(o.about);
    CHECK_MESSAGE(text_of(source_dir() + "/docs/" + o.page).find(o.option) != std::string::npos, o.option);
    CHECK_MESSAGE(has_case(o.folder, o.test), o.test);
  }
  CHECK_FALSE(uses("fp32", "forward_x"));
  CHECK_FALSE(uses("amp-fp16", "policy"));
  CHECK_FALSE(has_case("optim", "SOAP follows its pap"));
  check_part("formats.md", "fields", fields());
}

TEST_CASE("docs/formats.md: no key of a recipe's file is left out of the table of fields") {
  const std::vector<std::string> keys = keys_of_files();
  CHECK(keys.size() > 40);
  const std::vector<std::string> texts = {"name", "description", "base"};
  for (const std::string& key : keys) {
    CAPTURE(key);
    const bool listed =
        std::ranges::any_of(kFields, [&](const FieldRow& f) { return std::ranges::find(f.keys, key) != f.keys.end(); });
    CHECK((listed || std::ranges::find(texts, key) != texts.end()));
  }
}

TEST_CASE("docs/lab.md names every optimizer of the lab's library") {
  const std::string page = text_of(source_dir() + "/docs/lab.md");
  for (const std::string& name : lab::optimizer_names())
    CHECK_MESSAGE(page.find("`" + name + "`") != std::string::npos, name);
}
