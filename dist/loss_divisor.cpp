#include "loss_divisor.h"

#include <set>
#include <vector>

#include "../autograd/grad_mode.h"
#include "../autograd/node.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"

namespace gradual::dist {
namespace {

// A place on the way from the loss: a node, and what multiplies or divides its result.
struct Place {
  const Node* node = nullptr;
  bool scaled = false;      // by a number or tensor
  Tensor denominator = {};  // a scalar tensor without gradient
};

// The end of a way: what the node there divides by; none if it tells nothing.
struct Term {
  const Node* node = nullptr;
  bool counts_targets = false;  // cross_entropy, and a sum over its count
  std::optional<LossDivisor> divisor = {};
  bool ambiguous = false;  // a sum that is scaled
};

double elements(const Node& node) { return static_cast<double>(numel(node.input(0).sizes)); }

// True if what a sum adds was multiplied or divided by one number, which may be this shard's count.
bool scaled_inside(const Node& sum) {
  if (sum.op != OpId::sum) return false;
  const Node* at = sum.input(0).edge.node.get();
  while (at) {
    const Node& node = *at;
    const auto led = [&](int i) { return i < node.input_count ? node.input(i).edge.node.get() : nullptr; };
    const auto is_number = [&](int i) { return !led(i) && (!node.input(i).present || node.input(i).sizes.empty()); };
    switch (node.op) {
      case OpId::mul:
        if (is_number(0) || is_number(1)) return true;
        if (led(0) && led(1)) return false;
        at = led(0) ? led(0) : led(1);
        break;
      case OpId::div:
        if (is_number(1)) return true;
        at = led(1) ? nullptr : led(0);
        break;
      case OpId::neg:
      case OpId::cast: at = led(0); break;
      default: at = op_info(node.op).kind == OpKind::View ? led(0) : nullptr;
    }
  }
  return false;
}

Term summed(const Place& at, bool counts_targets) {
  Term term{.node = at.node, .counts_targets = counts_targets};
  if (at.denominator.defined()) {
    const double counted = at.denominator.item();
    term.divisor = LossDivisor{false, counted, counted};
    term.counts_targets = true;
    return term;
  }
  term.divisor = LossDivisor{.is_sum = true};
  term.ambiguous = at.scaled || scaled_inside(*at.node);
  return term;
}

// A mean over `counted` of `listed` values, which a denominator turns into one over that share of them.
Term averaged(const Place& at, double counted, double listed, bool counts_targets) {
  Term term{.node = at.node, .counts_targets = counts_targets};
  if (at.denominator.defined()) {
    counted *= at.denominator.item();
    term.counts_targets = true;
  }
  term.divisor = LossDivisor{false, counted, listed};
  return term;
}

Term cross_entropy_term(const Place& at) {
  const auto& attrs = at.node->attrs.get<CrossEntropyAttrs>();
  const Tensor& classes = at.node->input(1).saved;
  const auto listed = static_cast<double>(classes.numel());
  const double counted = sum(classes != static_cast<double>(attrs.ignore_index)).item();
  if (attrs.reduction == Reduction::sum) return summed(at, true);
  return averaged(at, counted, listed, true);
}

Term term_of(const Place& at) {
  const Node& node = *at.node;
  switch (node.op) {
    case OpId::cross_entropy:
      if (node.input(1).saved.defined()) return cross_entropy_term(at);
      return {.node = at.node};  // a backward has freed it
    case OpId::mean: return averaged(at, elements(node), elements(node), false);
    case OpId::sum: return summed(at, false);
    default: return {.node = at.node};
  }
}

// The only input that leads on, if the node's result is linear in it: it multiplies or divides, or changes no number.
std::optional<Place> through(const Place& at) {
  const Node& node = *at.node;
  const auto led = [&](int i) { return i < node.input_count ? node.input(i).edge.node.get() : nullptr; };
  const bool view = op_info(node.op).kind == OpKind::View;
  Place next = at;
  switch (node.op) {
    case OpId::mul:
      if (led(0) && led(1)) return {};
      next.node = led(0) ? led(0) : led(1);
      next.scaled = true;
      return next;
    case OpId::div: {
      if (!led(0) || led(1)) return {};
      next.node = led(0);
      const Node::Input& by = node.input(1);
      if (by.present && by.saved.defined() && by.saved.numel() == 1 && !at.denominator.defined())
        next.denominator = by.saved;
      else next.scaled = true;
      return next;
    }
    case OpId::cast:
    case OpId::neg:
    case OpId::clone:
    case OpId::to_device: next.node = led(0); return next;
    default:
      if (!view || !led(0) || numel(node.input(0).sizes) != 1) return {};
      next.node = led(0);
      return next;
  }
}

std::vector<Term> terms_of(const Tensor& loss) {
  std::vector<Term> terms;
  std::vector<Place> places{{.node = grad_meta(loss)->edge.node.get()}};
  while (!places.empty()) {
    const Place at = places.back();
    places.pop_back();
    if (at.node->op == OpId::add || at.node->op == OpId::sub) {
      for (int i = at.node->input_count - 1; i >= 0; --i)
        if (const Node* led = at.node->input(i).edge.node.get()) places.push_back({led, at.scaled, at.denominator});
      continue;
    }
    if (const std::optional<Place> next = through(at); next && next->node) places.push_back(*next);
    else terms.push_back(term_of(at));
  }
  return terms;
}

// True if a tensor enters on the way from the leaves to the node that carries no gradient, such as an input or target.
// A penalty on weights has none.
bool depends_on_data(const Node& of) {
  std::set<const Node*> seen{&of};
  std::vector<const Node*> waiting{&of};
  while (!waiting.empty()) {
    const Node& node = *waiting.back();
    waiting.pop_back();
    for (int i = 0; i < node.input_count; ++i) {
      const Node* const from = node.input(i).edge.node.get();
      if (!from && node.input(i).present) return true;
      if (from && seen.insert(from).second) waiting.push_back(from);
    }
  }
  return false;
}

bool divide_alike(const LossDivisor& a, const LossDivisor& b) {
  return a.is_sum == b.is_sum && (a.is_sum || a.counted * b.listed == b.counted * a.listed);
}

std::string text_of(const Term& t) {
  if (t.divisor->is_sum) return describe(*t.node) + " is a sum";
  return fmt::format("{} divides by {} of {}", describe(*t.node), t.divisor->counted, t.divisor->listed);
}

}  // namespace

std::optional<LossDivisor> divisor_of(const Tensor& loss) {
  if (!loss.requires_grad() || loss.numel() != 1) return {};
  const NoGrad off;
  const StageScope amp(chain().amp, nullptr);
  const StageScope unseen(chain().observe, nullptr);
  const StageScope exact(chain().results, nullptr);
  const std::vector<Term> terms = terms_of(loss);
  const Term* first = nullptr;
  for (const Term& t : terms) {
    const bool decides = t.counts_targets || terms.size() == 1;
    if (!t.divisor || (!decides && (t.ambiguous || !depends_on_data(*t.node)))) continue;
    if (t.ambiguous)
      throwf(
          "DataParallel: the loss is a sum ({}) times or over a number, which may be this shard's count or a constant; "
          "return the mean, or dist::ShardLoss(loss, count), or dist::ShardLoss::summed(loss)",
          describe(*t.node));
    if (first && !divide_alike(*first->divisor, *t.divisor))
      throwf(
          "DataParallel: the loss adds parts that divide by different things, so no weight of the shard is right: {}; "
          "{}; divide each by the batch's count and return dist::ShardLoss::summed(loss)",
          text_of(*first), text_of(t));
    if (!first) first = &t;
  }
  return first ? first->divisor : std::nullopt;
}

}  // namespace gradual::dist
