#include <cmath>

#include "misuse.h"

using namespace gradual;
using namespace gradual::amp;

namespace test {
namespace {

using Model = nn::Linear;
const optim::SGDOptions kSgd = {.lr = 0.5};
Tensor rows() { return ones({2, 3}); }
void valid(void (*edit)(Recipe&), const char* base = "amp-fp16") {
  Recipe r = recipe(base);
  r.name = "mine";
  edit(r);
  check_valid(r);
}
// A step of this recipe with a loss.
template <class F> Tensor step(F loss, const char* name = "fp32", RunOptions options = {}) {
  Model model(3, 1);
  RecipeRun run(recipe(name), model, kSgd, options);
  return run.step([&]() -> Tensor { return loss(model); }).loss;
}
Tensor mean_of(Model& m) { return mean(m(rows())); }

}  // namespace

Misuses amp_misuses() {
  return {
      // recipes
      {"a recipe of no name", [] { recipe("mixed"); },
       "no recipe 'mixed'; there are fp32, tf32, fp16-pure, bf16-pure, fp16-master, bf16-master, amp-fp16,"},
      {"a recipe of an empty name", [] { recipe(""); },
       "no recipe ''; there are fp32, tf32, fp16-pure, bf16-pure, fp16-master, bf16-master, amp-fp16,"},
      {"a static scale that is no number", [] { recipe("fp16-static:big"); },
       "recipe 'fp16-static:big': fp16-static: must be followed by a positive number, as in fp16-static:128"},
      {"a static scale of nothing", [] { recipe("fp16-static:"); },
       "recipe 'fp16-static:': fp16-static: must be followed by a positive number, as in fp16-static:128"},
      {"a static scale of NaN", [] { recipe("fp16-static:nan"); },
       "recipe 'fp16-static:nan': fp16-static: must be followed by a positive number, as in fp16-static:128"},
      {"a static scale of -8", [] { recipe("fp16-static:-8"); },
       "recipe 'fp16-static:-8': fp16-static: must be followed by a positive number, as in fp16-static:128"},
      {"a static scale of 1e300", [] { recipe("fp16-static:1e300"); },
       "recipe 'fp16-static:1e300': GradScaler: init_scale is 1e+300; it must be from min_scale,"},
      {"a recipe without a name", [] { valid([](Recipe& r) { r.name = ""; }); }, "recipe '': it needs a name"},
      {"f16 in mode full", [] { valid([](Recipe& r) { r.dtype = DType::f16; }, "fp32"); },
       "recipe 'mine': mode full computes in f32, not f16; autocast, half and pure take f16 and bf16"},
      {"f32 in mode autocast", [] { valid([](Recipe& r) { r.dtype = DType::f32; }); },
       "recipe 'mine': modes autocast, half and pure take the dtype f16 or bf16, not f32"},
      {"i64 in mode half", [] { valid([](Recipe& r) { r.dtype = DType::i64; }, "fp16-master"); },
       "recipe 'mine': modes autocast, half and pure take the dtype f16 or bf16, not i64"},
      {"masters in mode autocast", [] { valid([](Recipe& r) { r.masters = Masters::flat; }); },
       "recipe 'mine': masters, kahan and stochastic updates are for half parameters (modes half and pure);"},
      {"masters and kahan",
       [] { valid([](Recipe& r) { r.update = optim::LowPrecisionUpdate::kahan; }, "fp16-master"); },
       "recipe 'mine': masters and a kahan update exclude each other"},
      {"update masters", [] { valid([](Recipe& r) { r.update = optim::LowPrecisionUpdate::masters; }, "bf16-pure"); },
       "recipe 'mine': update is none, kahan, stochastic or eco; masters have their own field"},
      {"an optimizer's state of i32", [] { valid([](Recipe& r) { r.optimizer_state = DType::i32; }); },
       "recipe 'mine': optimizer_state is f32, f16 or bf16, not i32"},
      {"a scaling that is off", [] { valid([](Recipe& r) { r.scaling->enabled = false; }); },
       "recipe 'mine': a scaling that is not enabled is left out"},
      {"a scaling from NaN", [] { valid([](Recipe& r) { r.scaling->init_scale = NAN; }); },
       "recipe 'mine': GradScaler: init_scale is nan; it must be from min_scale, 1.1754943508222875e-38, to"},
      {"a policy for casts", [] { valid([](Recipe& r) {
                                    r.policy = {{OpId::cast, CastPolicy::lower()}};
                                  }); },
       "recipe 'mine': policy table: cast takes no policy but pass: explicit casts are never changed"},
      {"a lower dtype in mode full",
       [] {
         valid([](Recipe& r) { r.policy = {{OpId::matmul, CastPolicy::lower()}}; }, "fp32");
       },
       "recipe 'mine': mode full has no lower dtype for matmul; name one: f16 or bf16"},
      {"a quantizer of a format without bits",
       [] { valid([](Recipe& r) { r.quantization->forward_x->format.exponent_bits = 0; }, "mxfp8"); },
       "recipe 'mine': quantization, forward_x: format e0m3: 0 exponent bits; allowed are 1 to 8"},
      {"a block of no element",
       [] { valid([](Recipe& r) { set_block(r.quantization->forward_w->scaling, 0); }, "mxfp8"); },
       "recipe 'mine': quantization, forward_w: quantizer to e4m3fn: a block has at least 1 element, not 0"},
      {"a module of an unknown recipe",
       [] {
         valid([](Recipe& r) { r.quantization->modules = {{"head", "none"}}; }, "mxfp8");
       },
       "recipe 'mine': quantization, modules, head: no recipe 'none'; there are fp32, tf32, fp16-pure,"},
      {"a module that the model does not have",
       [] {
         Recipe r = recipe("mxfp8");
         r.quantization->modules = {{"head", "fp32"}};
         Model m(3, 1);
         check_valid(r, m);
       },
       "recipe 'mxfp8': quantization: the model has no module 'head'; allowed are first, last, '' (the"},
      {"a registered name that is taken", [] { register_recipe(recipe("fp32")); },
       "register_recipe: the name 'fp32' belongs to another recipe already"},
      {"an accumulator for a recipe", [] { recipe("e8m18-acc/chunk=64"); },
       "no recipe 'e8m18-acc/chunk=64': it is an accumulator, which a recipe's file names: {\"name\": \"mine\","},
      {"an accumulator of no format for a recipe", [] { recipe("banana-acc"); },
       "no recipe 'banana-acc', and accumulator 'banana-acc': there are f32, f64, fp16-acc, bf16-acc,"},
      {"an accumulator with a wrong option for a recipe", [] { recipe("e8m18-acc/chank=64"); },
       "no recipe 'e8m18-acc/chank=64', and accumulator 'e8m18-acc/chank=64': no option 'chank=64'; there are chunk=N, "
       "promote=N, group=N, fraction=N, adds=WAY, lowest=N, product=FORMAT; did you mean 'chunk=N'?. An accumulator is "
       "FORMAT-acc or a name as hopper-fp8, then what is wanted of :ROUNDING, /chunk=N, /promote=N, /group=N, "
       "/fraction=N, /adds=WAY, /lowest=N, /product=FORMAT"},
      {"a named accumulator for a recipe", [] { recipe("hopper-fp8/promote=128"); },
       "no recipe 'hopper-fp8/promote=128': it is an accumulator, which a recipe's file names"},
      {"recipes that are no JSON", [] { recipes_from_json("fp32"); }, "recipes: not JSON: line 1, column 2"},
      {"recipes of nothing", [] { recipes_from_json(""); }, "recipes: not JSON: line 1, column 1"},
      {"a recipe of a number", [] { recipe_from_json("7"); }, "recipe number 1: is 7; allowed is an object"},
      {"a recipe without name in JSON", [] { recipe_from_json("{}"); }, "recipe number 1: \"name\" is missing"},
      {"a recipe's unknown key", [] { recipe_from_json(R"({"name": "a", "mod": "full"})"); },
       "recipe 'a': unknown key \"mod\"; allowed are base, name, description, mode, dtype, tf32, masters,"},
      {"a recipe's unknown mode", [] { recipe_from_json(R"({"name": "a", "mode": "fulll"})"); },
       "recipe 'a': \"mode\" is \"fulll\"; allowed is one of full, autocast, half, pure; did you mean 'full'?"},
      {"a recipe's unknown base", [] { recipe_from_json(R"({"name": "a", "base": "b"})"); },
       "recipe 'a', base: no recipe 'b'; there are fp32, tf32, fp16-pure, bf16-pure, fp16-master,"},
      {"a recipe's key twice", [] { recipe_from_json(R"({"name": "a", "name": "b"})"); },
       "recipes: the key \"name\" is given twice in one object"},
      {"a recipe's number as text",
       [] {
         recipe_from_json(R"({"name": "a", "base": "amp-fp16", "scaling": {"kind": "static", "init_scale": "1"}})");
       },
       "recipe 'a', scaling: \"init_scale\" is \"1\"; allowed is a number"},
      {"a recipe's scale of 1e999",
       [] {
         recipe_from_json(R"({"name": "a", "base": "amp-fp16", "scaling": {"kind": "static", "init_scale": 1e999}})");
       },
       "recipes: not JSON: number overflow parsing '1e999'"},
      {"two recipes for one", [] { recipe_from_json(R"([{"name": "a"}, {"name": "b"}])"); },
       "recipe_from_json: one recipe is expected, given 2"},
      {"two recipes of one name", [] { recipes_from_json(R"([{"name": "a"}, {"name": "a"}])"); },
       "recipes: two recipes have the name 'a'"},
      {"another recipe called fp32", [] { recipe_from_json(R"({"name": "fp32", "tf32": true})"); },
       "recipe 'fp32': there is a recipe 'fp32' already, and this is another; it needs a name of its own"},
      {"a file of recipes that is not there", [] { load_recipes("/no/recipes.json"); },
       "cannot read \"/no/recipes.json\": No such file or directory"},
      // runs
      {"a run without optimizer",
       [] {
         Model m(3, 1);
         RecipeRun(recipe("fp32"), m, nullptr);
       },
       "RecipeRun: the function that makes the optimizer is null"},
      {"a run whose optimizer is null",
       [] {
         Model m(3, 1);
         RecipeRun(recipe("fp32"), m,
                   [](const MakeOptimizer::Groups&, const optim::UpdateOptions&) { return MakeOptimizer::Made(); });
       },
       "RecipeRun: the function that makes the optimizer returned none"},
      {"a run of a model without parameters",
       [] {
         nn::ReLU m;
         RecipeRun(recipe("fp32"), m, kSgd);
       },
       "RecipeRun: the model ReLU has no parameters to train"},
      {"a run with lr NaN",
       [] {
         Model m(3, 1);
         RecipeRun(recipe("fp32"), m, optim::SGDOptions{.lr = NAN});
       },
       "optimizer: lr nan is out of range; it must be at least 0 and finite"},
      {"a run that clips to NaN", [] { return step(mean_of, "fp32", {.clip_norm = NAN}); },
       "RecipeRun: clip_norm is nan; it must be at least 0"},
      {"a run that clips to -1", [] { return step(mean_of, "fp32", {.clip_norm = -1}); },
       "RecipeRun: clip_norm is -1; it must be at least 0"},
      {"a null loss function",
       [] {
         Model m(3, 1);
         RecipeRun(recipe("fp32"), m, kSgd).step(nullptr);
       },
       "RecipeRun: the function of the loss or output is null"},
      {"a null function evaluated",
       [] {
         Model m(3, 1);
         return RecipeRun(recipe("fp32"), m, kSgd).evaluate(nullptr);
       },
       "RecipeRun: the function of the loss or output is null"},
      {"an undefined loss", [] { return step([](Model&) { return Tensor(); }); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"an undefined loss, scaled", [] { return step([](Model&) { return Tensor(); }, "amp-fp16"); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"a loss of two elements", [] { return step([](Model& m) { return m(rows()); }); },
       "backward: an output of shape [2, 1] needs a gradient of that shape; only one-element outputs start"},
      {"a loss without gradient", [] { return step([](Model&) { return ones({}); }); },
       "backward: the output [] does not depend on any tensor that requires grad"},
      {"two runs on one model",
       [] {
         Model m(3, 1);
         RecipeRun first(recipe("fp32"), m, kSgd);
         RecipeRun second(recipe("amp-bf16"), m, kSgd);
       },
       "RecipeRun: another run trains the model Linear"},
      {"a run on a model whose run is over",
       [] {
         Model m(3, 1);
         { RecipeRun(recipe("fp32"), m, kSgd); }
         RecipeRun(recipe("amp-bf16"), m, kSgd);
       },
       "= done"},
      {"fp32 on half parameters",
       [] {
         Model m(3, 1);
         m.to(DType::bf16);
         RecipeRun(recipe("fp32"), m, kSgd);
       },
       "RecipeRun: recipe 'fp32' takes no bf16 parameters, such as weight; cast the model with"},
      {"amp on half parameters",
       [] {
         Model m(3, 1);
         m.to(DType::f16);
         RecipeRun(recipe("amp-fp16"), m, kSgd);
       },
       "RecipeRun: recipe 'amp-fp16' takes no f16 parameters, such as weight; cast the model with"},
      {"masters on half parameters",
       [] {
         Model m(3, 1);
         m.to(DType::f16);
         RecipeRun(recipe("fp16-master"), m, kSgd);
       },
       "= done"},
      {"bf16 on f16 parameters",
       [] {
         Model m(3, 1);
         m.to(DType::f16);
         RecipeRun(recipe("bf16-pure"), m, kSgd);
       },
       "RecipeRun: recipe 'bf16-pure' takes no f16 parameters, such as weight; cast the model with"},
      {"a module moved away from its run",
       [] {
         Model m(3, 1);
         RecipeRun run(recipe("fp32"), m, kSgd);
         Model moved(std::move(m));
         run.step([&] { return mean(moved(rows())); });
       },
       "RecipeRun: its model was moved away; make a new run"},
      {"a model cast behind its run",
       [] {
         Model m(3, 1);
         RecipeRun run(recipe("fp32"), m, kSgd);
         m.to(DType::bf16);
         run.step([&] { return mean(m(rows())); });
       },
       "RecipeRun: the model became bf16 on cpu, the run began with f32 on cpu; make a new run"},
      {"the state of another recipe",
       [] {
         Model a(3, 1);
         Model b(3, 1);
         RecipeRun(recipe("fp32"), a, kSgd).load_state_dict(RecipeRun(recipe("tf32"), b, kSgd).state_dict());
       },
       "RecipeRun: the state is of a run of 'tf32'; this run's recipe is 'fp32'"},
      {"a run's empty state",
       [] {
         Model m(3, 1);
         RecipeRun(recipe("fp32"), m, kSgd).load_state_dict(StateDict());
       },
       "state_dict: no entry \"recipe\"; the state dict is empty"},
      // autocast and policies
      {"autocast to f32", [] { const Autocast scope({.dtype = DType::f32}); },
       "Autocast: casts to f16 or bf16, not to f32; {.enabled = false} computes in f32"},
      {"autocast to integers", [] { const Autocast scope({.dtype = DType::i64}); },
       "Autocast: casts to f16 or bf16, not to i64; {.enabled = false} computes in f32"},
      {"bce_loss under autocast",
       [] {
         const Autocast scope({.dtype = DType::f16});
         return bce_loss(full({2}, 0.5), ones({2}));
       },
       "bce_loss: [2] f32 x [2] f32: banned under autocast: it takes probabilities, and a half format"},
      {"a policy of an unknown op", [] { PolicyTable().set("softmx", CastPolicy::lower()); },
       "no op 'softmx'; did you mean 'softmax'?"},
      {"a policy of an unknown name", [] { CastPolicy::from_name("low"); },
       "no cast policy 'low'; allowed are pass, lower, fp32, promote, banned, f32, f16, bf16; did you mean"},
      {"a cast to integers as policy", [] { CastPolicy::cast(DType::i64); },
       "cast policy: casts to f32, f16 or bf16, not to i64; a rewrite computes in other formats"},
      {"a policy for copies", [] { PolicyTable().set("copy_", CastPolicy::fp32()); },
       "policy table: copy_ takes no policy but pass: what is written in place keeps its dtype; use the"},
      {"a policy for a fusion", [] { PolicyTable().set("linear_relu", CastPolicy::fp32()); },
       "policy table: linear_relu takes no policy but pass: it is linear and relu, which have theirs"},
      {"a null rewrite", [] { PolicyTable().set("matmul", CastPolicy::rewrite("mine", nullptr)); },
       "cast policy: the rewrite 'mine' has no function"},
      {"a rewrite of an op of three outputs",
       [] { PolicyTable().set("batch_norm", CastPolicy::rewrite("mine", [](const OpCall&) { return Outputs(); })); },
       "policy table: batch_norm cannot be rewritten; its gradient must be made of its inputs alone, as"},
      {"a reason for an unknown op", [] { return PolicyTable().why("matmull", {DType::f32}); },
       "no op 'matmull'; did you mean 'matmul'?"},
      {"to_half to f32",
       [] {
         Model m(3, 1);
         to_half(m, DType::f32);
       },
       "to_half: converts to f16 or bf16, not to f32; use Module::to for other dtypes"},
      {"to_pure to integers",
       [] {
         Model m(3, 1);
         to_pure(m, DType::i64);
       },
       "to_pure: converts to f16 or bf16, not to i64; use Module::to for other dtypes"},
      {"an override to f64",
       [] {
         Model m(3, 1);
         set_override(m, {.dtype = DType::f64});
       },
       "set_override on Linear: the dtype is f16 or bf16, not f64; {.enabled = false} computes in f32"},
      {"a null quantisation's state",
       [] {
         PolicyTable table;
         quantize_contractions(table, nullptr);
       },
       "quantize_contractions: the state is null"},
      {"delayed scaling of weights as moments",
       [] {
         Quantization q;
         q.weight = Quantizer{.format = format("e4m3fn"), .scaling = DelayedScale{}};
         check_valid(q);
       },
       "quantization: gradients, weights, masters, moments and results take scales from their own values: no delayed"},
  };
}

}  // namespace test
