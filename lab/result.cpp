#include "result.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <set>

#include "../core/files/json_text.h"
#include "../core/support/error.h"
#include "../core/support/message_text.h"
#include "../core/support/threads.h"
#include "../inspect/csv_text.h"
#include "gradual/version.h"
#include "html_page.h"
#include "json/fields.h"
#include "json/packed.h"
#include "live.h"
#include "objective.h"
#include "pairs.h"
#include "products.h"
#include "result_check.h"

namespace gradual::embedded {
extern const unsigned char report_html_in[];
extern const unsigned char report_js[];
}  // namespace gradual::embedded

namespace gradual::lab {
namespace {

struct Peaks {
  std::array<std::int64_t, kCategories>& bytes;
  std::int64_t& total;
};
template <class V> void fields(V& v, const Peaks& p) {
  for (std::size_t i = 0; i < p.bytes.size(); ++i) v(to_string(static_cast<Category>(i)), p.bytes[i]);
  v("total", p.total);
}

}  // namespace

std::string_view to_string(FindingSource source) { return enum_name(source, {"run", "fp32", "error"}); }

template <class V> void fields(V& v, Curve& c) {
  v("step", c.step);
  v("loss", c.loss);
  v("scale", c.scale);
  v("skipped", c.skipped);
  v("underflow_percent", c.underflow_percent);
  v("phase", c.phase, kLater);
}

template <class V> void fields(V& v, PhaseEntry& p) {
  v("step", p.step);
  v("recipe", p.recipe);
  v("modules", p.modules);
  v("quantity", p.quantity);
  v("value", p.value);
  v("below", p.below);
}

template <class V> void fields(V& v, SampleScores& s) {
  v("metric", s.metric);
  v("better", s.better);
  packed_field(v, "sample", Packed<std::uint32_t>{s.sample});
  packed_field(v, "counted", Packed<float>{s.counted});
  packed_field(v, "loss", Packed<float>{s.loss});
  packed_field(v, "score", Packed<float>{s.score});
}

template <class V> void fields(V& v, CastRow& c) {
  v("role", c.role);
  v("layer", c.layer);
  v("kind", c.kind, kLater);
  v("elements", c.elements);
  v("underflow_percent", c.underflow_percent);
  v("overflow_percent", c.overflow_percent);
  v("nan", c.nan);
}

template <class V> void fields(V& v, Zones& z) {
  v("name", z.name);
  v("min_normal_exponent", z.min_normal_exponent);
  v("max_exponent", z.max_exponent);
  v("zero_below_exponent", z.zero_below_exponent, kLater);
  // earlier versions stored the exponent of the smallest subnormal number, half of which is the limit
  if constexpr (std::is_same_v<V, FieldReader>)
    if (v.json.contains("min_subnormal_exponent")) {
      v("min_subnormal_exponent", z.zero_below_exponent);
      --z.zero_below_exponent;
    }
}
template <class V> void fields(V& v, Histogram& h) {
  v("role", h.role);
  v("first_exponent", h.first_exponent);
  v("counts", h.counts);
  v("as_if", h.as_if);
  v("formats", h.formats, kLater);
  if constexpr (std::is_same_v<V, FieldReader>)  // earlier versions had one format or null
    if (v.json.contains("format") && !v.json["format"].is_null()) read(v.json["format"], h.formats.emplace_back());
}

template <class V> void fields(V& v, Outcome& o) {
  v("kind", o.kind);
  v("points", o.points);
  v("interval", o.interval);
  v("change", o.change, kLater);
  v("metric", o.metric, kLater);
  v("step", OrNull{o.step});
  v("skipped", OrNull{o.skipped});
  v("steps", OrNull{o.steps});
  v("loss", o.loss, kLater);
  v("loss_interval", o.loss_interval, kLater);
  v("needed", OrNull{o.needed}, kLater);
  v("low", o.low, kLater);
  v("high", o.high, kLater);
  v("p", o.p, kLater);
  v("looks_worse", o.looks_worse, kLater);
}

template <class V> void fields(V& v, Note& n) {
  v("kind", n.kind);
  v("value", n.value);
  v("of", n.of);
}

// The fields of a verdict; "verdict" beside them is its sentence. A file of an earlier version has the sentence alone.
struct Judgement {
  Verdict& verdict;
};
template <class V> void fields(V& v, const Judgement& j) {
  fields(v, static_cast<Outcome&>(j.verdict));
  v("own", j.verdict.own);
  v("fp32", j.verdict.fp32);
  v("notes", j.verdict.notes, kLater);
  if constexpr (std::is_same_v<V, FieldWriter>) {
    const VerdictInfo& info = verdict_info(j.verdict.kind);
    v.json["tone"] = std::string(to_string(info.tone));
    v.json["fails"] = j.verdict.fails();
    if (j.verdict.earlier.empty()) return;
  }
  v("earlier", j.verdict.earlier, kLater);
}

// The kind whose name an earlier version's sentence begins with.
VerdictKind kind_of_earlier(const std::string& sentence) {
  const auto begins = [&](const VerdictInfo& info) { return sentence.starts_with(info.name); };
  const auto* found = std::ranges::find_if(kVerdictInfos, begins);
  return found == std::end(kVerdictInfos) ? VerdictKind::unjudged : found->kind;
}

template <class V> void verdict_fields(V& v, Verdict& verdict) {
  std::string sentence = to_string(verdict);
  v("verdict", sentence, kLater);
  if constexpr (std::is_same_v<V, FieldReader>) {
    if (!v.json.contains("judgement")) {
      verdict = {{.kind = kind_of_earlier(sentence)}};
      verdict.earlier = sentence;
      return;
    }
  }
  v("judgement", Judgement{verdict});
}

// An enumerator by its name; "" stands for none.
template <class V, class E> void name_or_empty(V& v, const char* key, std::optional<E>& value) {
  std::string name(value ? to_string(*value) : "");
  v(key, name);
  if constexpr (std::is_same_v<V, FieldReader>)
    value = name.empty() ? std::nullopt : std::optional(enumerator<E>(name));
}

template <class V> void fields(V& v, Finding::Cure& c) {
  v("edit", JsonText{c.edit});
  v("remedy", c.remedy);
}
template <class V> void fields(V& v, Finding::Tried& t) {
  v("accuracy", t.accuracy);
  v("loss", t.loss);
  v("metric", t.metric, kLater);
  verdict_fields(v, t.verdict);
}
template <class V> void fields(V& v, Finding& f) {
  v("cause", f.cause);
  name_or_empty(v, "phase", f.phase);
  v("op", f.op);
  v("site", f.site);
  v("role", f.role, kLater);
  v("operands", f.operands, kLater);
  v("step", OrNull{f.step});
  v("sentence", f.sentence);
  v("precision", f.precision);
  v("source", f.source, kLater);
  v("remedy", f.remedy);
  v("cure", JsonText{f.cure});
  v("cures", f.cures, kLater);
  v("tried", f.tried);
  v("undone", f.undone, kLater);
}

template <class V> void fields(V& v, MetricInfo& m) {
  v("name", m.name);
  v("unit", m.unit);
  v("better", m.better);
  if constexpr (std::is_same_v<V, FieldWriter>) v("share", m.is_share());
}
template <class V> void fields(V& v, Difference& d) {
  v("mean", d.mean);
  v("half_interval", d.half);
  v("error", d.error, kLater);
}

template <class V> void fields(V& v, StepErrors::Row& r) {
  v("phase", r.phase);
  v("op", r.op);
  v("layer", r.layer);
  name_or_empty(v, "product", r.product);
  v("local", r.local);
  v("inherited", r.inherited);
  v("total", r.total);
  v("local_ulps", r.local_ulps);
  v("total_ulps", r.total_ulps);
  v("inherited_ulps", r.inherited_ulps, kLater);
  v("cosine", r.cosine);
  v("share", r.share);
  v("bias", r.bias, kLater);
  v("bias_interval", r.bias_interval, kLater);
  v("gain", r.gain, kLater);
  v("gain_interval", r.gain_interval, kLater);
}
template <class V> void fields(V& v, BlockMap& b) {
  v("layer", b.layer);
  v("operand", b.operand);
  v("rule", b.rule);
  v("block", b.block);
  v("columns", b.columns);
  v("clipped_percent", b.clipped_percent);
  v("regret_percent", b.regret_percent);
}
template <class V> void fields(V& v, StepErrors& e) {
  v("step", e.step);
  v("loss", e.loss);
  v("exact_loss", e.exact_loss);
  v("explained", e.explained);
  v("rows", e.rows);
  if constexpr (std::is_same_v<V, FieldReader>) name_products(e.rows);  // earlier versions named them in the report
}

template <class V> void fields(V& v, UpdateCloud& c) {
  v("step", c.step);
  v("dtype", c.dtype);
  v("mantissa_bits", c.mantissa_bits);
  v("least_exponent", c.least_exponent);
  v("log2_weight", c.log2_weight);
  v("log2_update", c.log2_update);
  v("arrives", c.arrives);
}
template <class V> void fields(V& v, UpdateCurve& u) {
  v("parameter", u.parameter);
  v("step", u.step);
  v("vanished_percent", u.vanished_percent);
  v("ratio", u.ratio);
  v("arriving", u.arriving);
  v("cloud", u.cloud);
}

template <class V> void fields(V& v, MonitorCurve& m) {
  v("monitor", m.monitor);
  v("layer", m.layer);
  v("operand", m.operand);
  v("step", m.step);
  v("value", m.value);
}

template <class V> void fields(V& v, RecipePair& p) {
  v("first", p.first);
  v("second", p.second);
  v("seeds", p.seeds);
  v("difference", p.metric);
  v("loss_difference", p.loss);
  v("share_of_seeds_better", p.better);
  v("p", p.p);
  v("half_interval_together", p.half_together);
  v("holds_together", p.holds);
}

template <class V> void fields(V& v, Origin& o) {
  v("program", o.program);
  v("options", o.options);
  v("recipe", o.recipe);
}

template <class V> void fields(V& v, Result& r) {
  v("recipe", r.recipe);
  v("model", r.model);
  v("data", r.data);
  v("seed", r.seed);
  v("epochs", r.epochs);
  v("steps", r.steps);
  v("skipped_steps", r.skipped_steps);
  v("final_scale", r.final_scale);
  v("train_loss", r.train_loss);
  v("test_loss", r.test_loss);
  v("test_accuracy", r.test_accuracy);
  v("metric", r.metric, kLater);
  v("test_metric", r.test_metric, kLater);
  v("constant_metric", r.constant_metric, kLater);
  v("test_samples", r.test_samples, kLater);
  v("ms_per_step", r.ms_per_step);
  v("peak_bytes", Peaks{r.peak_bytes, r.peak_total});
  v("underflow_percent", r.underflow_percent);
  v("overflow_percent", r.overflow_percent);
  v("zero_percent", r.zero_percent, kLater);
  v("status", r.status);
  verdict_fields(v, r.verdict);
  v("difference", r.difference, kLater);
  v("loss_difference", r.loss_difference, kLater);
  v("findings", r.findings, kLater);
  v("device", r.device, kLater);
  v("batch", r.batch, kLater);
  v("lr", r.lr, kLater);
  v("optimizer", r.optimizer, kLater);
  v("definition", JsonText{r.definition}, kLater);
  v("origin", r.origin, kLater);
  v("casts", r.casts);
  v("step_errors", r.errors, kLater);
  v("bytes_sent", r.bytes_sent, kLater);
  v("phases", r.phases, kLater);
  v("operand_bits", r.operand_bits, kLater);
}
namespace {

// Where losses are infinite, which JSON has no number for: 1 or -1 by sign, 0 where they are not. A resumed comparison
// has the text of one that was never stopped.
struct Infinities {
  std::int64_t train = 0;
  std::int64_t test = 0;
  std::vector<std::int64_t> curve = {};  // empty: none is
};
template <class V> void fields(V& v, Infinities& i) {
  v("train_loss", i.train);
  v("test_loss", i.test);
  v("curve", i.curve);
}

std::int64_t infinity_of(double loss) {
  if (!std::isinf(loss)) return 0;
  return loss > 0 ? 1 : -1;
}
Infinities infinities_of(const Result& r) {
  Infinities i{.train = infinity_of(r.train_loss), .test = infinity_of(r.test_loss)};
  if (std::ranges::none_of(r.curve.loss, [](double loss) { return std::isinf(loss); })) return i;
  for (const double loss : r.curve.loss) i.curve.push_back(infinity_of(loss));
  return i;
}

void restore(double& loss, std::int64_t infinity) {
  if (infinity != 0) loss = std::copysign(std::numeric_limits<double>::infinity(), static_cast<double>(infinity));
}
void restore(Result& r, const Infinities& i) {
  restore(r.train_loss, i.train);
  restore(r.test_loss, i.test);
  for (std::size_t k = 0; k < std::min(i.curve.size(), r.curve.loss.size()); ++k) restore(r.curve.loss[k], i.curve[k]);
}

// The fields that results.json lacks.
template <class V> void curve_fields(V& v, Result& r) {
  v("settings", r.settings);
  v("curve", r.curve);
  v("histograms", r.histograms);
  v("samples", r.samples, kLater);
  Infinities infinite = infinities_of(r);
  v("infinite", infinite, kLater);
  restore(r, infinite);
  v("blocks", r.blocks, kLater);
  v("updates", r.updates, kLater);
  v("monitors", r.monitors, kLater);
  v("what_if", JsonText{r.what_if}, kLater);
}

Json result_json(Result r, bool with_curves) {
  r.test_metric = metric_of(r);
  FieldWriter writer;
  fields(writer, r);
  if (with_curves) curve_fields(writer, r);
  return std::move(writer.json);
}

Result result_from(const Json& json) {
  Result r;
  r.zero_percent = std::numeric_limits<double>::quiet_NaN();
  r.device = "cpu";
  FieldReader reader{json};
  fields(reader, r);
  if (json.contains("curve")) curve_fields(reader, r);  // results.json has none
  check_values(r);
  return r;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

Json machine() {
  utsname u{};
  uname(&u);
  return {{"cpu", cpu_name()},
          {"threads", num_threads()},
          {"system", std::string(u.sysname) + " " + u.machine},
          {"compiler",
#ifdef __clang__
           "clang " __clang_version__
#else
           "g++ " __VERSION__
#endif
          }};
}

Json document(const std::vector<Result>& results, bool with_curves) {
  Json runs = Json::array();
  for (const Result& r : results) runs.push_back(result_json(r, with_curves));
  return {{"runs", runs}, {"machine", machine()}, {"version", GRADUAL_VERSION}};
}

// The order of the sums of `terms` products in an accumulator; none for the name of another version.
std::optional<Json> points_of_emulated(const std::string& name, int terms) try {
  return points_of(inspect::tree_of(accumulator(name), terms));
} catch (const Error&) { return {}; }

// The order of sums as points to draw: of this machine's products, and of the recipes' accumulators.
Json sums(const std::vector<Result>& results) {
  constexpr int kTerms = 32;
  static const Json here = [] {
    Json trees = Json::array();
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Product p = current_product(dtype, kTerms);
      trees.push_back({{"name", p.name}, {"points", points_of(inspect::probe(p.dot, p.options).tree)}});
    }
    return trees;
  }();
  std::set<std::string> names;
  for (const Result& r : results) {
    const Json definition = Json::parse(r.definition.empty() ? "{}" : r.definition);
    const Json used = definition.value("/quantization/accumulator"_json_pointer, Json());
    if (used.is_string() && used != "none") names.insert(used);
  }
  if (names.empty()) names.insert("fp16-acc/chunk=8");
  Json trees = here;
  for (const std::string& name : names)
    if (const std::optional<Json> points = points_of_emulated(name, kTerms))
      trees.push_back({{"name", "emulated " + name}, {"points", *points}});
  return trees;
}

// A user's path may contain invalid UTF-8; it is replaced by U+FFFD.
std::string to_text(const Json& j, int indent = -1) {
  return j.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string results_json(const std::vector<Result>& results, bool with_curves) {
  Json all = document(results, with_curves);
  if (!with_curves) all["pairs"] = json_of(recipe_pairs(results));
  return to_text(all, with_curves ? -1 : 2) + "\n";
}

std::vector<Result> results_from_json(const std::string& text, const std::string& file) {
  try {
    std::vector<Result> results;
    const Json all = Json::parse(bounded_json(text));
    if (!all.is_object() || !all.contains("runs")) throw_error(file + " is not a file of the lab: it has no runs");
    const Json& runs = all["runs"];
    if (!runs.is_array()) at_path("runs", [&] { refuse(runs, "a list is expected"); });
    for (std::size_t i = 0; i < runs.size(); ++i)
      at_path(fmt::format("runs[{}]", i), [&] { results.push_back(result_from(runs[i])); });
    return results;
  } catch (const FieldError& e) { throw_error(file + ": " + e.text()); } catch (const nlohmann::json::exception& e) {
    throw_error(file + " is not a file of the lab: " + json_problem(e));
  }
}

std::string to_string(const PhaseEntry& p) {
  const std::string what = p.modules.empty() ? "" : fmt::format("{} ", fmt::join(p.modules, ", "));
  const std::string why =
      p.quantity.empty() ? "" : fmt::format(": {} was {:.3g}, below {:.3g}", p.quantity, p.value, p.below);
  return fmt::format("from step {} on {}as {}{}", p.step, what, p.recipe, why);
}

std::string curves_csv(const std::vector<Result>& results) {
  std::string text = "recipe,seed,step,loss,scale,skipped,underflow_percent,phase\n";
  for (const Result& r : results) text += curve_lines(r.recipe, r.seed, r.curve);
  return text;
}

std::string runs_csv(const std::vector<Result>& results) {
  const auto line = [](const Result& r) {
    Json j = result_json(r, false);
    j["peak_bytes"] = r.peak_total;
    for (const char* nested : {"findings", "definition", "origin", "casts", "step_errors", "difference",
                               "loss_difference", "judgement", "metric", "phases"})
      j.erase(nested);
    return to_text(j) + "\n";
  };
  std::string lines = line({});  // for the header
  for (const Result& r : results) lines += line(r);
  return inspect::csv_of(lines);
}

std::string report_html(const std::vector<Result>& results) {
  Json all = document(results, true);
  for (Json& run : all["runs"]) run.erase("samples");  // the page does not show them
  all["sums"] = sums(results);
  all["pairs"] = json_of(recipe_pairs(results));
  return html_page(embedded::report_html_in, embedded::report_js, to_text(all));
}

}  // namespace gradual::lab
