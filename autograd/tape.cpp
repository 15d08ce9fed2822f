#include "tape.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace gradual {
namespace {

std::string result_kind(const Node& n) {
  if (!n.is_leaf) return kind_of(n.output_sizes, n.output_dtype);
  if (!n.leaf) return "gone";
  return kind_of(n.leaf->sizes, n.leaf->dtype);
}

// Inputs as "#3 [2, 3] f32"; "-" in place of the number where nothing is recorded.
std::string inputs_of(const Node& n) {
  std::string text;
  for (int i = 0; i < n.input_count; ++i) {
    const Node::Input& x = n.input(i);
    if (!x.present) continue;
    if (!text.empty()) text += ", ";
    text += x.edge.node ? '#' + std::to_string(x.edge.node->sequence) : std::string(1, '-');
    text += ' ' + kind_of(x.sizes, x.dtype);
  }
  return text;
}

std::int64_t bytes_of(const std::vector<Tensor>& tensors) {
  std::unordered_set<const Storage*> seen;
  std::int64_t bytes = 0;
  for (const Tensor& t : tensors)
    if (const Storage* s = t.unsafe_impl()->storage.get(); seen.insert(s).second)
      bytes += static_cast<std::int64_t>(s->bytes);
  return bytes;
}

// Left-aligned columns, two spaces apart; the last one is not padded.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += row[i] + std::string(i + 1 < row.size() ? widths[i] - row[i].size() + 2 : 0, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (std::string("\"\\{}|<>").find(c) != std::string::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

Tape Tape::of(const Tensor& result) {
  if (!result.requires_grad())
    fail("Tape::of: the tensor " + gradual::to_string(result.sizes()) + " does not require grad, nothing is recorded");
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
  std::sort(tape.nodes_.begin(), tape.nodes_.end(),
            [](const Ref<Node>& a, const Ref<Node>& b) { return a->sequence < b->sequence; });
  return tape;
}

std::int64_t Tape::saved_bytes() const {
  std::vector<Tensor> all;
  for (const Ref<Node>& n : nodes_)
    for (Tensor& t : n->saved_tensors()) all.push_back(std::move(t));
  return bytes_of(all);
}

void Tape::set_name(const Tensor& t, const std::string& text) {
  if (const GradMeta* m = grad_meta(t); m && m->edge.node) names_.emplace_back(m->edge.node.get(), text);
}

std::string Tape::name_of(const Node& node) const {
  for (const auto& [named, text] : names_)
    if (named == &node) return text;
  return name(node);
}

std::string Tape::to_string() const {
  std::vector<std::vector<std::string>> rows{{"#", "op", "inputs", "result", "module", "line", "saved", "inserted by"}};
  for (const Ref<Node>& n : nodes_) {
    const std::int64_t bytes = bytes_of(n->saved_tensors());
    const std::string given = name_of(*n);
    rows.push_back({std::to_string(n->sequence), given == name(*n) ? given : name(*n) + " " + given, inputs_of(*n),
                    result_kind(*n), n->module, place(n->where), bytes ? std::to_string(bytes) : "", n->cause});
  }
  return aligned(rows) + "total: " + std::to_string(nodes_.size()) + " nodes, " + std::to_string(saved_bytes()) +
         " bytes saved for backward (each storage counted once)\n";
}

std::string Tape::to_dot() const {
  std::string text = "digraph tape {\n  rankdir=LR;\n  node [fontname=\"monospace\"];\n";
  for (const Ref<Node>& n : nodes_) {
    const std::string id = std::to_string(n->sequence);
    const std::string value = "v" + id;
    std::string label = escaped(name_of(*n)) + " | " + escaped(result_kind(*n));
    if (*n->module) label += " | " + escaped(n->module);
    text += "  " + value + " [shape=record, label=\"{ " + label + " }\"];\n";
    if (n->is_leaf) continue;
    const std::string op = "o" + id;
    const std::string more = *n->cause ? "\\n" + escaped(n->cause) : "";
    text +=
        "  " + op + " [shape=ellipse, label=\"" + escaped(name(*n)) + more + "\"];\n  " + op + " -> " + value + ";\n";
    for (int i = 0; i < n->input_count; ++i)
      if (const Ref<Node>& from = n->input(i).edge.node)
        text += "  v" + std::to_string(from->sequence) + " -> " + op + ";\n";
  }
  return text + "}\n";
}

Tape::Stepper::Stepper(const Tensor& result, const Tensor& gradient, autograd::GradOptions options)
    : engine_({&result, 1}, {&gradient, 1}, options) {}

const Tape::Stepper::Step& Tape::Stepper::next() {
  if (done()) fail("Tape::Stepper: the backward is done; ask done() first");
  engine_.step(&step_);
  return step_;
}

std::string to_string(const Tape::Stepper::Step& step) {
  std::string text = describe(*step.node) + ": grad ";
  std::string values;
  const auto add = [&](const Tensor& g, const std::string& what) {
    text += kind_of(g);
    if (g.numel() <= 64) values += "\n  " + what + " " + to_string(g);
  };
  bool first = true;
  for (const Tensor& g : step.grads_out) {
    if (!g.defined()) continue;
    text += first ? "" : ", ";
    first = false;
    add(g, "grad of the result:");
  }
  if (step.node->is_leaf) return text + " gathered" + values;
  text += " ->";
  for (std::size_t i = 0; i < step.grads_in.size(); ++i) {
    text += i ? ", " : " ";
    if (step.grads_in[i].defined()) add(step.grads_in[i], "to input " + std::to_string(i) + ":");
    else text += "none";
  }
  return text + values;
}

}  // namespace gradual
