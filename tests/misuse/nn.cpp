#include <cmath>

#include "misuse.h"
#include "support/files.h"

using namespace gradual;

namespace test {
namespace {

Tensor rows() { return ones({2, 3}); }
struct Empty : nn::Module {};
StateDict changed(const char* name, const Tensor& value) {
  StateDict state = nn::Linear(3, 2).state_dict();
  state.set(name, value);
  return state;
}

}  // namespace

Misuses nn_misuses() {
  using namespace nn;
  return {
      {"Linear of no input", [] { Linear(0, 2); }, "Linear: in is 0; it must be at least 1"},
      {"Linear of a negative output", [] { Linear(3, -2); }, "Linear: out is -2; it must be at least 1"},
      {"Linear of another width", [] { return Linear(4, 2)(rows()); },
       "linear: [2, 3] f32 x [2, 4] f32 x [2] f32: the input's last size must be the weight's second, 4"},
      {"Linear of integers", [] { return std::string(to_string(Linear(3, 2)(arange(0, 3)).dtype())); }, "= f32"},
      {"Linear of f64", [] { return std::string(to_string(Linear(3, 2)(rows().to(DType::f64)).dtype())); }, "= f64"},
      {"Linear of f16", [] { return std::string(to_string(Linear(3, 2)(rows().to(DType::f16)).dtype())); }, "= f32"},
      {"Linear of an undefined tensor", [] { return Linear(3, 2)(Tensor()); },
       "linear: none x [2, 3] f32 x [2] f32: needs an input"},
      {"Conv2d of no channel", [] { Conv2d(0, 2, 3); }, "Conv2d: in is 0; it must be at least 1"},
      {"Conv2d of an empty kernel", [] { Conv2d(1, 2, 0); }, "Conv2d: kernel height is 0; it must be at least 1"},
      {"Conv2d of groups that do not divide", [] { Conv2d(3, 2, 3, {.groups = 2}); },
       "Conv2d: 2 groups do not divide 3 input and 2 output channels"},
      {"Conv2d of no group", [] { Conv2d(3, 2, 3, {.groups = 0}); },
       "Conv2d: 0 groups do not divide 3 input and 2 output channels"},
      {"Conv2d by steps of 0",
       [] {
         return Conv2d(1, 1, 1, {.stride = 0})(ones({1, 1, 2, 2}));
       },
       "conv2d: [1, 1, 2, 2] f32 x [1, 1, 1, 1] f32 x [1] f32: stride and dilation must be at least 1,"},
      {"Conv2d of f64",
       [] {
         return std::string(to_string(Conv2d(1, 1, 1)(ones({1, 1, 2, 2}, DType::f64)).dtype()));
       },
       "= f64"},
      {"Conv2d of bytes",
       [] {
         return std::string(to_string(Conv2d(1, 1, 1)(ones({1, 1, 2, 2}, DType::u8)).dtype()));
       },
       "= f32"},
      {"BatchNorm of no channel", [] { BatchNorm1d(0); }, "BatchNorm: channels is 0; it must be at least 1"},
      {"BatchNorm with eps NaN", [] { return BatchNorm1d(3, {.eps = NAN})(rows()); },
       "batch_norm: [2, 3] f32 x [3] f32 x [3] f32 x [3] f32 x [3] f32: eps is nan; it must be at least 0"},
      {"BatchNorm with a negative eps", [] { return BatchNorm1d(3, {.eps = -1})(rows()); },
       "batch_norm: [2, 3] f32 x [3] f32 x [3] f32 x [3] f32 x [3] f32: eps is -1; it must be at least 0"},
      {"BatchNorm with a momentum of NaN", [] { return BatchNorm1d(3, {.momentum = NAN})(rows()); },
       "batch_norm_update_: [3] f32 x [3] f32 x [] i64 x [3] f32 x [3] f32: the momentum is nan; it must be"},
      {"BatchNorm with a momentum of 2", [] { return BatchNorm1d(3, {.momentum = 2})(rows()); },
       "batch_norm_update_: [3] f32 x [3] f32 x [] i64 x [3] f32 x [3] f32: the momentum is 2; it must be 0"},
      {"BatchNorm2d of a matrix", [] { return BatchNorm2d(3)(rows()); },
       "BatchNorm2d: input [2, 3]; allowed is [N, C, H, W]"},
      {"BatchNorm of other channels", [] { return BatchNorm1d(4)(rows()); },
       "batch_norm: [2, 3] f32 x [4] f32 x [4] f32 x [4] f32 x [4] f32: weight and bias must be [3], given"},
      {"BatchNorm of one row",
       [] {
         return BatchNorm1d(3)(ones({1, 3}));
       },
       "batch_norm: [1, 3] f32 x [3] f32 x [3] f32 x [3] f32 x [3] f32: training needs more than one value"},
      {"BatchNorm of integers",
       [] {
         return BatchNorm1d(3)(ones({2, 3}, DType::i64));
       },
       "batch_norm: [2, 3] i64 x [3] f32 x [3] f32 x [3] f32 x [3] f32: takes f64, f32, f16 or bf16; cast"},
      {"BatchNorm of f64", [] { return std::string(to_string(BatchNorm1d(3)(rows().to(DType::f64)).dtype())); },
       "= f64"},
      {"LayerNorm of no size", [] { LayerNorm(std::int64_t{0}); },
       "LayerNorm: a normalized size is 0; it must be at least 1"},
      {"LayerNorm with eps NaN", [] { return LayerNorm(std::int64_t{3}, {.eps = NAN})(rows()); },
       "layer_norm: [2, 3] f32 x [3] f32 x [3] f32: eps is nan; it must be at least 0 and finite"},
      {"LayerNorm of another size", [] { return LayerNorm(std::int64_t{4})(rows()); },
       "LayerNorm: input [2, 3] does not end in the normalised shape [4]"},
      {"LayerNorm without sizes", [] { return LayerNorm(Shape{})(rows()); },
       "layer_norm: [2, 3] f32 x [] f32 x [] f32: cannot normalise 0 trailing dims of [2, 3]"},
      {"RMSNorm with a negative eps", [] { return RMSNorm(std::int64_t{3}, {.eps = -1})(rows()); },
       "rms_norm: [2, 3] f32 x [3] f32: eps is -1; it must be at least 0 and finite"},
      {"Dropout of 2", [] { Dropout(2); }, "Dropout: p is 2.000000; allowed are 0 to 1"},
      {"Dropout of NaN", [] { Dropout(NAN); }, "Dropout: p is nan; allowed are 0 to 1"},
      {"Embedding of no entry", [] { Embedding(0, 2); }, "Embedding: entries is 0; it must be at least 1"},
      {"Embedding by floats", [] { return Embedding(2, 2)(rows()); },
       "index_select: [2, 2] f32 x [6] f32: an index must be i64, given f32"},
      {"Embedding beyond the end", [] { return Embedding(2, 2)(full({1}, 2, DType::i64)); },
       "index_select: [2, 2] f32 x [1] i64: index 2 at [0] is out of range; allowed are 0 to 1"},
      {"attention of heads that do not divide", [] { MultiheadAttention(5, 2); },
       "MultiheadAttention: 2 heads do not divide an embedding of 5"},
      {"attention of no head", [] { MultiheadAttention(4, 0); },
       "MultiheadAttention: 0 heads do not divide an embedding of 4"},
      {"attention with a dropout of 2",
       [] {
         return MultiheadAttention(4, 2, {.dropout = 2})(ones({1, 2, 4}));
       },
       "MultiheadAttention: dropout is 2; allowed are 0 to 1"},
      {"attention of another width",
       [] {
         return MultiheadAttention(4, 2)(ones({1, 2, 6}));
       },
       "MultiheadAttention: input [1, 2, 6]; allowed is [.., length, 4]"},
      {"attention of a vector", [] { return MultiheadAttention(4, 2)(ones({4})); },
       "MultiheadAttention: input [4]; allowed is [.., length, 4]"},
      {"a transformer block of a negative width", [] { TransformerBlock(4, 2, {.feedforward = -8}); },
       "Linear: out is -8; it must be at least 1"},
      {"a transformer block with a dropout of NaN", [] { TransformerBlock(4, 2, {.dropout = NAN}); },
       "MultiheadAttention: dropout is nan; allowed are 0 to 1"},
      {"MaxPool2d of no window",
       [] {
         return MaxPool2d(0)(ones({1, 1, 2, 2}));
       },
       "max_pool2d: [1, 1, 2, 2] f32: kernel and stride must be at least 1"},
      {"AdaptiveAvgPool2d to nothing",
       [] {
         return AdaptiveAvgPool2d(0)(ones({1, 1, 2, 2}));
       },
       "adaptive_avg_pool2d: [1, 1, 2, 2] f32: the output size must be at least 1 x 1"},
      {"Softmax over a dim too far", [] { return Softmax(5)(rows()); },
       "softmax: dim 5 is out of range for a 2-d tensor; allowed are -2 to 1"},
      {"Flatten of a vector", [] { return Flatten()(ones({3})); },
       "flatten: dim 1 is out of range for a 1-d tensor; allowed are -1 to 0"},
      {"a module of Sequential beyond the end", [] { Sequential{Linear(3, 2)}[1]; },
       "Sequential: no module 1; there are 1"},
      {"an empty Sequential", [] { return Sequential()(rows()); }, "= f32: 1 1 1 1 1 1"},
      {"a null module", [] { Sequential().push_back(std::shared_ptr<Linear>()); },
       "Sequential: cannot register module '0': the pointer is null"},
      {"two parameters of one name",
       [] {
         Empty m;
         m.register_parameter("w", rows());
         m.register_parameter("w", rows());
       },
       "Empty: cannot register parameter 'w': the module has something of that name already"},
      {"a name with a dot", [] { Empty().register_buffer("a.b", rows()); },
       "Empty: cannot register buffer 'a.b': a name has no dots; they separate the parts of a path"},
      {"an empty name", [] { Empty().register_parameter("", rows()); },
       "Empty: cannot register parameter '': the name is empty"},
      {"a parameter of integers", [] { Empty().register_parameter("w", arange(0, 3)); },
       "set_requires_grad: only f64, f32, f16 and bf16 tensors carry gradients, this one is i64"},
      {"a parameter that is a result", [] { Empty().register_parameter("w", ones({2}, {.requires_grad = true}) * 2); },
       "Empty: parameter 'w' is the result of an op; detach() it"},
      {"a module that contains itself",
       [] {
         const auto m = std::make_shared<Empty>();
         m->register_module("self", m);
       },
       "Empty: cannot register module 'self': it would contain itself"},
      {"a module without forward", [] { return Empty()(rows()); },
       "Empty: has no forward for one tensor; call its operator(), or override forward(const Tensor&)"},
      {"a null forward hook", [] { Linear(3, 2).register_forward_hook(nullptr); },
       "register_forward_hook: the hook is null"},
      {"a null module hook", [] { Linear(3, 2).set_hook(nullptr); }, "= done"},
      {"a forward hook of an unknown number", [] { Linear(3, 2).remove_forward_hook(9); }, "= done"},
      {"a state without the weight", [] { Linear(3, 2).load_state_dict(StateDict()); },
       "load_state_dict of Linear: the keys do not fit:"},
      {"a state with one tensor too many", [] { Linear(3, 2).load_state_dict(changed("more", rows())); },
       "load_state_dict of Linear: the keys do not fit:"},
      {"a state of another shape",
       [] {
         Linear(3, 2).load_state_dict(changed("weight", ones({2, 4})));
       },
       "load_state_dict of Linear: the keys do not fit:"},
      {"a state of a text",
       [] {
         StateDict state = Linear(3, 2).state_dict();
         state.set("weight", std::string("one"));
         Linear(3, 2).load_state_dict(state);
       },
       "load_state_dict of Linear: the keys do not fit:"},
      {"a state of another shape, not strict",
       [] {
         Linear(3, 2).load_state_dict(changed("weight", ones({2, 4})), false);
       },
       "load_state_dict of Linear: the keys do not fit:"},
      {"a module cast to integers", [] { Linear(3, 2).to(DType::i64); },
       "Linear: parameters are f64, f32, f16 or bf16, not i64"},
      {"a module cast to f8", [] { Linear(3, 2).to(DType::f8e4m3fn); },
       "Linear: parameters are f64, f32, f16 or bf16, not f8e4m3fn"},
      {"a module moved to a GPU that is not there", [] { Linear(3, 2).to(Device::cuda(9)); }, "no device cuda:9"},
      {"a summary of another input",
       [] {
         Linear m(3, 2);
         return summary(m, {2, 4});
       },
       "linear: [2, 4] f32 x [2, 3] f32 x [2] f32: the input's last size must be the weight's second, 3"},
      {"a summary of integers",
       [] {
         Linear m(3, 2);
         return contains(summary(m, {2, 3}, DType::i64), "[2, 2] f32");
       },
       "= true"},
      {"init of a vector by its fans", [] { init::xavier_uniform_(ones({3})); },
       "init: fan in and fan out need a weight of at least two dims [out, in, ..], given [3]; use uniform_,"},
      {"init with a reversed range", [] { init::uniform_(rows(), 1, 0); },
       "uniform_: from 1 to 0 is not a finite range"},
      {"init with a negative deviation", [] { init::normal_(rows(), 0, -1); },
       "normal_: mean 0 and deviation -1 must be finite, the deviation at least 0"},
      {"init with a gain of NaN", [] { init::xavier_normal_(rows(), NAN); },
       "normal_: mean 0 and deviation nan must be finite, the deviation at least 0"},
      {"init with a negative gain", [] { init::xavier_uniform_(rows(), -1); },
       "uniform_: from 1.0954451150103321 to -1.0954451150103321 is not a finite range"},
      {"init with a slope of NaN", [] { init::kaiming_uniform_(rows(), {.slope = NAN}); },
       "uniform_: from -nan to nan is not a finite range"},
      {"init of integers",
       [] {
         init::normal_(arange(0, 6).reshape({2, 3}));
       },
       "i64: rand, randn, uniform_ and normal_ fill floats; use randint"},
      {"init of integers with a constant of NaN", [] { init::constant_(arange(0, 3), NAN); },
       "fill_: nan does not fit into i64"},
      {"CrossEntropyLoss of classes in f32", [] { return CrossEntropyLoss()(rows(), ones({2})); },
       "cross_entropy: [2, 3] f32 x [2] f32: classes must be i64, given f32"},
      {"MSELoss of other shapes", [] { return MSELoss()(rows(), ones({2})); },
       "mse_loss: [2, 3] f32 x [2] f32: input and target must have the same shape"},
      {"BCELoss of logits", [] { return BCELoss()(rows() * 3, rows()); },
       "bce_loss: 3 is not a probability; bce_with_logits_loss takes logits"},
  };
}

}  // namespace test
