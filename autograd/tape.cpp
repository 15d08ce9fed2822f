#include "tape.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "../core/support/message_text.h"
#include "../core/support/throwf.h"

namespace gradual {
namespace {

std::string result_kind(const Node& n) {
  if (!n.is_leaf()) return kind_of(n.output_sizes, n.output_dtype);
  return n.leaf ? kind_of(n.leaf->sizes, n.leaf->dtype) : "gone";
}

// Inputs as "#3 [2, 3] f32"; "-" in place of the number where nothing is recorded.
std::string inputs_of(const Node& n) {
  std::vector<std::string> all;
  for (int i = 0; i < n.input_count; ++i) {
    const Node::Input& in = n.input(i);
    const std::string from = in.edge.node ? fmt::format("#{} ", in.edge.node->sequence) : "- ";
    if (in.present) all.push_back(from + kind_of(in.sizes, in.dtype));
  }
  return join(all);
}

std::int64_t bytes_of(const std::vector<Tensor>& tensors) {
  std::unordered_set<const Storage*> seen;
  std::int64_t bytes = 0;
  for (const Tensor& t : tensors)
    if (const Storage* s = t.unsafe_impl()->storage.get(); seen.insert(s).second)
      bytes += static_cast<std::int64_t>(s->bytes);
  return bytes;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (std::string_view("\"\\{}|<>").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

Tape Tape::of(const Tensor& result) {
  if (!result.requires_grad())
    throwf("Tape::of: the tensor {} does not require grad, nothing is recorded", gradual::to_string(result.sizes()));
  Tape tape;
  std::unordered_set<const Node*> seen;
  std::vector<Ref<Node>> open{grad_meta(result)->edge.node};
  seen.insert(open[0].get());
  while (!open.empty()) {
    const Ref<Node> node = std::move(open.back());
    open.pop_back();
    tape.nodes_.push_back(node);
    for (int i = 0; i < node->input_count; ++i)
      if (const Ref<Node>& next = node->input(i).edge.node; next && seen.insert(next.get()).second)
        open.push_back(next);
  }
  std::ranges::sort(tape.nodes_, {}, [](const Ref<Node>& n) { return n->sequence; });
  return tape;
}

std::int64_t Tape::saved_bytes() const {
  std::vector<Tensor> all;
  for (const Ref<Node>& n : nodes_) std::ranges::move(n->saved_tensors(), std::back_inserter(all));
  return bytes_of(all);
}

std::string Tape::name_of(const Node& node) const {
  for (const auto& [named, text] : names_)
    if (named == &node) return text;
  return op_name(node);
}

std::string Tape::to_string() const {
  std::vector<std::vector<std::string>> rows{{"#", "op", "inputs", "result", "module", "line", "saved", "inserted by"}};
  for (const Ref<Node>& n : nodes_) {
    const std::int64_t bytes = bytes_of(n->saved_tensors());
    const std::string given = name_of(*n);
    const std::string op = op_name(*n);
    rows.push_back({fmt::to_string(n->sequence), given == op ? given : op + " " + given, inputs_of(*n), result_kind(*n),
                    n->module, file_line(n->where), bytes ? fmt::to_string(bytes) : "", n->cause->text});
  }
  return table_of(rows) + fmt::format("total: {} nodes, {} bytes saved for backward (each storage counted once)\n",
                                      nodes_.size(), saved_bytes());
}

std::string Tape::to_dot() const {
  std::string text = "digraph tape {\n  rankdir=LR;\n  node [fontname=\"monospace\"];\n";
  for (const Ref<Node>& n : nodes_) {
    const std::uint64_t id = n->sequence;
    const std::string module = *n->module ? " | " + escaped(n->module) : "";
    text += fmt::format("  v{} [shape=record, label=\"{{ {} | {}{} }}\"];\n", id, escaped(name_of(*n)),
                        escaped(result_kind(*n)), module);
    if (n->is_leaf()) continue;
    const std::string why = *n->cause->text ? "\\n" + escaped(n->cause->text) : "";
    text += fmt::format("  o{0} [shape=ellipse, label=\"{1}{2}\"];\n  o{0} -> v{0};\n", id, escaped(op_name(*n)), why);
    for (int i = 0; i < n->input_count; ++i)
      if (const Ref<Node>& from = n->input(i).edge.node) text += fmt::format("  v{} -> o{};\n", from->sequence, id);
  }
  return text + "}\n";
}

std::string to_string(const Tape::Stepper::Step& step) {
  std::string values;
  const auto shown = [&](const Tensor& g, const std::string& what) {
    if (!g.defined()) return std::string("none");
    if (g.numel() <= 64) values += "\n  " + what + ": " + to_string(g);
    return describe(g);
  };
  std::vector<std::string> came, went;
  for (const Tensor& g : step.grads_out)
    if (g.defined()) came.push_back(shown(g, "grad of the result"));
  went.reserve(step.grads_in.size());
  for (const Tensor& g : step.grads_in) went.push_back(shown(g, fmt::format("to input {}", went.size())));
  return fmt::format("{}: grad {}{}{}{}", describe(*step.node), join(came), step.node->is_leaf() ? " gathered" : " -> ",
                     join(went), values);
}

}  // namespace gradual
