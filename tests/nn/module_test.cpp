// Module: registration, names, modes, conversion, state dicts, calls.
#include "helpers.h"

using namespace nn_test;

namespace {

unsigned here(std::source_location loc = std::source_location::current()) { return loc.line(); }

struct Block : nn::Module {
  nn::Linear& fc = register_module("fc", nn::Linear(3, 4));
  nn::BatchNorm1d& bn = register_module("bn", nn::BatchNorm1d(4));
  Tensor& scale = register_parameter("scale", ones({4}));
  Tensor forward(const Tensor& x) override { return relu(bn(fc(x))) * scale; }
};
const unsigned kBlockLine = here() - 2;

struct Net : nn::Module {
  Block& first = register_module("first", Block());
  nn::Linear& head = register_module("head", nn::Linear(4, 2));
  Tensor forward(const Tensor& x) override { return head(first(x)); }
};
const unsigned kNetLine = here() - 2;

std::vector<std::string> names(const auto& named) {
  std::vector<std::string> out;
  for (const auto& entry : named) out.push_back(entry.first);
  return out;
}

using Names = std::vector<std::string>;

// Records the module path, line and cause of every op of its kind that runs.
struct Recorder : Interceptor {
  struct Seen {
    OpId op;
    std::string module;
    unsigned line;
    std::string file;
  };
  std::vector<Seen> seen;
  Outputs call(const OpCall& c) override {
    seen.push_back({c.op, context().module, c.where.line(), c.where.file_name()});
    return next_below_observe(c);
  }
};

}  // namespace

TEST_CASE("names are dotted paths in the order of registration") {
  Net net;
  CHECK(names(net.named_parameters()) == Names{"first.scale", "first.fc.weight", "first.fc.bias", "first.bn.weight",
                                               "first.bn.bias", "head.weight", "head.bias"});
  CHECK(names(net.named_buffers()) ==
        Names{"first.bn.running_mean", "first.bn.running_var", "first.bn.num_batches_tracked"});
  CHECK(names(net.named_modules()) == Names{"", "first", "first.fc", "first.bn", "head"});
  CHECK(net.named_parameters(false).empty());
  CHECK(names(net.first.named_parameters(false)) == Names{"scale"});
  CHECK(std::string(net.first.fc.path()) == "first.fc");
  CHECK(std::string(net.path()).empty());
  CHECK(net.kind() == "Net");
  CHECK(net.first.bn.kind() == "BatchNorm1d");
  CHECK(nn::ReLU().kind() == "ReLU");
  for (const Tensor& p : net.parameters()) CHECK(p.requires_grad());
}

TEST_CASE("register: an invalid registration is an Error with the reason") {
  nn::Module m;
  m.register_parameter("w", ones({1}));
  const auto shared = std::make_shared<nn::ReLU>();
  CHECK(contains(message_of([&] { m.register_buffer("w", ones({1})); }), "has something of that name already"));
  CHECK(contains(message_of([&] { m.register_parameter("a.b", ones({1})); }), "no dots"));
  CHECK(contains(message_of([&] { m.register_parameter("", ones({1})); }), "the name is empty"));
  CHECK(contains(message_of([&] { m.register_module("r", std::shared_ptr<nn::ReLU>()); }), "null"));
  const auto loop = std::make_shared<nn::Sequential>(shared);
  CHECK(contains(message_of([&] { loop->push_back(loop); }), "contain itself"));
  CHECK(contains(message_of([&] { m(ones({1})); }), "Module: has no forward"));
  CHECK(m.named_parameters().size() == 1);
}

TEST_CASE("a module that moves keeps its parameters, children and references") {
  Block a;
  const Tensor weight = a.fc.weight;
  Block b = std::move(a);
  CHECK(b.fc.weight.is_same(weight));
  CHECK(b.named_parameters().size() == 5);
  const Tensor x = noise({5, 3});
  CHECK(b(x).sizes() == Shape{5, 4});
}

TEST_CASE("shared parameters are listed once and saved under each name") {
  struct Tied : nn::Module {
    nn::Embedding& embedding = register_module("embedding", nn::Embedding(7, 3));
    nn::Linear& head = register_module("head", nn::Linear(3, 7, {.bias = false}));
    Tied() { head.weight = embedding.weight; }
    Tensor forward(const Tensor& i) override { return head(embedding(i)); }
  };
  Tied model;
  CHECK(names(model.named_parameters()) == Names{"embedding.weight"});
  CHECK(model.parameters().size() == 1);
  const StateDict state = model.state_dict();
  CHECK(state.size() == 2);
  CHECK(state.tensor("head.weight").shares_storage(state.tensor("embedding.weight")));

  sum(model(from_data(std::vector<std::int64_t>{1, 2}, {2}))).backward();
  const Tensor grad = model.embedding.weight.grad();
  REQUIRE(grad.defined());
  CHECK(values(grad)[0] != 0);  // row 0 was not looked up: its gradient comes from the head
  model.to(DType::f64);
  CHECK(model.head.weight.is_same(model.embedding.weight));
  CHECK(model.head.weight.dtype() == DType::f64);
}

TEST_CASE("a shared module runs under one path and counts once") {
  const auto shared = std::make_shared<nn::Linear>(3, 3);
  nn::Sequential model(shared, nn::ReLU(), shared);
  CHECK(model.parameters().size() == 2);
  CHECK(model.named_modules().size() == 3);
  CHECK(model.state_dict().size() == 4);
  const Tensor x = noise({2, 3});
  CHECK(same_bits(model(x), (*shared)(relu((*shared)(x)))));
}

TEST_CASE("train and eval reach every module") {
  Net net;
  CHECK(net.first.bn.training());
  net.eval();
  for (const auto& m : net.named_modules()) CHECK_MESSAGE(!m.second->training(), m.first);
  net.train();
  for (const auto& m : net.named_modules()) CHECK_MESSAGE(m.second->training(), m.first);
}

TEST_CASE("to(f16) keeps identity, converts gradients, and trains on") {
  Net net;
  const std::vector<Tensor> before = net.parameters();
  const std::vector<double> old = values(net.head.weight);
  sum(net(noise({5, 3}))).backward();
  net.to(DType::f16);
  const std::vector<Tensor> after = net.parameters();
  REQUIRE(before.size() == after.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    CHECK(before[i].is_same(after[i]));
    CHECK(before[i].dtype() == DType::f16);
    CHECK(before[i].requires_grad());
    CHECK(before[i].is_leaf());
    CHECK(before[i].grad().dtype() == DType::f16);
    CHECK(before[i].unsafe_impl()->storage->category == Category::parameters);
  }
  CHECK(net.first.bn.running_mean.dtype() == DType::f16);
  CHECK(net.first.bn.num_batches_tracked.dtype() == DType::i64);
  for (std::size_t i = 0; i < old.size(); ++i)
    CHECK(std::abs(values(net.head.weight)[i] - old[i]) <= 0x1p-11 * std::abs(old[i]));

  net.zero_grad();
  CHECK_FALSE(net.head.weight.grad().defined());
  const Tensor y = net(noise({5, 3}, 1, DType::f16));
  CHECK(y.dtype() == DType::f16);
  sum(square(y)).backward();
  for (const Tensor& p : net.parameters()) CHECK(p.grad().dtype() == DType::f16);
  CHECK(contains(message_of([&] { net.to(DType::i64); }), "parameters are f64, f32, f16 or bf16, not i64"));
}

TEST_CASE("to with a filter leaves other modules alone") {
  Net net;
  net.to(DType::bf16, [](const nn::Module& m) { return dynamic_cast<const nn::Norm*>(&m) == nullptr; });
  CHECK(net.first.fc.weight.dtype() == DType::bf16);
  CHECK(net.first.scale.dtype() == DType::bf16);
  CHECK(net.first.bn.weight.dtype() == DType::f32);
  CHECK(net.first.bn.running_var.dtype() == DType::f32);
}

TEST_CASE("parameters are counted as such") {
  const auto used = [] { return memory_stats()[Category::parameters].current; };
  const std::int64_t before = used();
  {
    nn::Linear layer(100, 10);
    CHECK(used() - before == (100 * 10 + 10) * 4);
    layer.to(DType::f16);
    CHECK(used() - before == (100 * 10 + 10) * 2);
  }
  CHECK(used() == before);
}

TEST_CASE("set_requires_grad freezes and thaws") {
  nn::Linear layer(2, 2);
  layer.set_requires_grad(false);
  CHECK_FALSE(layer(noise({1, 2})).requires_grad());
  layer.set_requires_grad(true);
  CHECK(layer(noise({1, 2})).requires_grad());
}

TEST_CASE("a state dict goes round, by value and converted") {
  Net a, b;
  a(noise({5, 3}));  // moves the running statistics
  const StateDict state = a.state_dict();
  CHECK(state.size() == 10);
  CHECK(state.tensor("head.weight").shares_storage(a.head.weight));
  CHECK_FALSE(state.tensor("head.weight").requires_grad());
  CHECK_FALSE(same_bits(a.head.weight, b.head.weight));
  const Tensor kept = b.head.weight;
  b.load_state_dict(state);
  CHECK(b.head.weight.is_same(kept));
  CHECK(b.head.weight.requires_grad());
  CHECK_FALSE(b.head.weight.shares_storage(a.head.weight));
  for (const auto& entry : b.state_dict())
    CHECK_MESSAGE(same_bits(std::get<Tensor>(entry.value), state.tensor(entry.name)), entry.name);
  CHECK(b.first.bn.num_batches_tracked.item() == 1);

  Net half;
  half.to(DType::f16);
  half.load_state_dict(state);
  CHECK(half.head.weight.dtype() == DType::f16);
  CHECK(same_bits(half.head.weight.detach(), a.head.weight.detach().to(DType::f16)));
}

TEST_CASE("a state dict that does not fit names every key and writes nothing") {
  nn::Sequential model(nn::Linear(2, 3), nn::Linear(3, 1));
  StateDict state;
  state.set("0.weight", zeros({3, 2}));
  state.set("0.bias", zeros({4}));
  state.set("1.weight", 7);
  state.set("2.weight", zeros({1}));
  state.set("2.bias", zeros({1}));
  const std::vector<double> before = values(model.state_dict().tensor("0.weight"));
  const std::string message = message_of([&] { model.load_state_dict(state); });
  CHECK(contains(message, "load_state_dict of Sequential"));
  CHECK(contains(message, "missing: 1.bias"));
  CHECK(contains(message, "unexpected: 2.weight, 2.bias"));
  CHECK(contains(message, "mis-shaped: 0.bias is a tensor f32 [4] and should be a tensor f32 [3]"));
  CHECK(contains(message, "1.weight is the integer 7 and should be a tensor f32 [1, 3]"));
  CHECK(values(model.state_dict().tensor("0.weight")) == before);

  // Not strict: other keys may lack or be there, shapes must still fit.
  CHECK(contains(message_of([&] { model.load_state_dict(state, false); }), "mis-shaped"));
  state.set("0.bias", ones({3}));
  state.set("1.weight", ones({1, 3}));
  const nn::LoadResult result = model.load_state_dict(state, false);
  CHECK(result.missing == Names{"1.bias"});
  CHECK(result.unexpected == Names{"2.weight", "2.bias"});
  CHECK(values(model.state_dict().tensor("0.bias")) == std::vector<double>{1, 1, 1});
}

TEST_CASE("an op inside a layer names the caller's line and the layer") {
  Net net;
  net.eval();
  Recorder recorder;
  const Tensor x = noise({2, 3});
  {
    const StageScope observe(chain().observe, &recorder);
    net(x);
  }
  const auto find = [&](OpId op, const std::string& module) -> const Recorder::Seen& {
    for (const auto& s : recorder.seen)
      if (s.op == op && s.module == module) return s;
    FAIL("no such op: ", module);
    return recorder.seen.front();
  };
  const auto& fc = find(OpId::linear, "first.fc");
  const auto& act = find(OpId::relu, "first");
  const auto& head = find(OpId::linear, "head");
  CHECK(contains(fc.file, "module_test.cpp"));
  CHECK(fc.line == kBlockLine);  // inside Linear, yet where Block::forward calls it
  CHECK(act.line == kBlockLine);
  CHECK(head.line == kNetLine);
  CHECK(std::string(context().module).empty());

  // Inside nested layers it is the outermost call that counts.
  nn::Sequential nested{nn::Sequential{nn::ReLU()}, nn::TransformerBlock(4, 2)};
  nested.eval();
  recorder.seen.clear();
  const unsigned line = std::source_location::current().line() + 3;
  {
    const StageScope observe(chain().observe, &recorder);
    nested(noise({2, 3, 4}));
  }
  REQUIRE(recorder.seen.size() > 5);
  for (const auto& s : recorder.seen) CHECK(s.line == line);
  CHECK(find(OpId::relu, "0.0").line == line);
  CHECK(find(OpId::linear, "1.self_attn.out_proj").line == line);
}

TEST_CASE("forward hooks see input and output until they are removed") {
  Net net;
  net.eval();
  Names calls;
  const auto hook = [&](nn::Module& m, const Tensor& x, const Tensor& y) {
    calls.push_back(std::string(m.path()) + " " + to_string(x.sizes()) + " " + to_string(y.sizes()));
  };
  const std::uint64_t id = net.head.register_forward_hook(hook);
  net.first.register_forward_hook(hook);
  net(noise({2, 3}));
  CHECK(calls == Names{"first [2, 3] [2, 4]", "head [2, 4] [2, 2]"});
  net.head.remove_forward_hook(id);
  calls.clear();
  net(noise({2, 3}));
  CHECK(calls == Names{"first [2, 3] [2, 4]"});
}

TEST_CASE("a module's hook surrounds its calls, what throws leaves all scopes as they were") {
  struct Thrower : nn::Module {
    Tensor forward(const Tensor& x) override { return x.reshape({7, 7}); }
  };
  struct Outer : nn::Module {
    Thrower& inner = register_module("inner", Thrower());
    Tensor forward(const Tensor& x) override { return inner(x); }
  };
  Names log;
  Outer outer;
  outer.inner.set_hook([&](nn::Module& m) {
    log.push_back("enter " + std::string(m.path()) + " in " + context().module);
    return std::shared_ptr<void>(nullptr, [&](void*) { log.push_back(std::string("leave in ") + context().module); });
  });
  CHECK(contains(message_of([&] { outer(ones({2})); }), "reshape"));
  CHECK(log == Names{"enter inner in inner", "leave in inner"});
  CHECK(std::string(context().module).empty());
  CHECK(context().line.line() == 0);
  outer.inner.set_hook(nullptr);
  log.clear();
  CHECK_THROWS_AS(outer(ones({2})), Error);
  CHECK(log.empty());
}
