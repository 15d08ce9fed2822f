// docs/a-training-step.md names functions and the files that define them. These tests fail where the code moved on.
// tests/debugger/way.py checks with gdb that a step enters the functions.
#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "support/source_dir.h"

namespace {

using namespace gradual;

struct Net : nn::Module {
  nn::Linear& fc1 = register_module("fc1", nn::Linear(4, 8));
  nn::Linear& fc2 = register_module("fc2", nn::Linear(8, 3));
  Tensor forward(const Tensor& x) override { return fc2(relu(fc1(x))); }
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file, path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Link {
  std::string symbol, file;
};

// Each [`symbol`](../file) of the page, in its order.
std::vector<Link> links_of(const std::string& page) {
  static const std::regex kLink(R"(\[`([^`]+)`\]\(\.\./([^)#]+)\))");
  std::vector<Link> links;
  for (std::sregex_iterator m(page.begin(), page.end(), kLink), end; m != end; ++m)
    links.push_back({(*m)[1].str(), (*m)[2].str()});
  return links;
}

// "next_below_amp" of "gradual::next_below_amp()".
std::string identifier(std::string symbol) {
  symbol = symbol.substr(0, symbol.find('('));
  const auto colon = symbol.rfind(':');
  return colon == std::string::npos ? symbol : symbol.substr(colon + 1);
}

bool names(const std::string& source, const std::string& word) {
  return std::regex_search(source, std::regex("\\b" + word + "\\b"));
}

}  // namespace

TEST_CASE("docs/a-training-step.md: every link names a file, and a function in it") {
  const std::vector<Link> links = links_of(text_of(source_dir() + "/docs/a-training-step.md"));
  CHECK(links.size() > 20);
  for (const Link& link : links) {
    CAPTURE(link.symbol);
    CAPTURE(link.file);
    const std::string source = text_of(source_dir() + "/" + link.file);
    if (link.symbol != link.file) CHECK(names(source, identifier(link.symbol)));
  }
}

TEST_CASE("docs/a-training-step.md: a layer saves x for the gradient of its weight, the weight for that of x") {
  Net net;
  const Tensor x = randn({2, 4});
  const amp::RecipeScope scope(amp::recipe("amp-bf16"), Device::cpu());
  const Tensor y = net(x);
  std::vector<std::vector<bool>> saved;  // by layer: x, weight, bias
  const Tape tape = Tape::of(y);
  for (const Ref<Node>& node : tape.nodes()) {
    if (node->op != OpId::linear) continue;
    saved.emplace_back();
    for (int i = 0; i < 3; ++i) {
      const Tensor& kept = node->input(i).saved;
      saved.back().push_back(kept.defined());
      if (kept.defined()) CHECK(kept.dtype() == DType::bf16);
    }
  }
  CHECK(saved == std::vector<std::vector<bool>>{{true, false, false}, {true, true, false}});
}
