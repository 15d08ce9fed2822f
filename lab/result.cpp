#include "result.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "../core/files/json_text.h"
#include "../core/support/error.h"
#include "../core/support/threads.h"
#include "../inspect/csv_text.h"
#include "gradual/version.h"

namespace gradual::embedded {
extern const unsigned char report_html_in[];
extern const unsigned long report_html_in_size;
extern const unsigned char report_css[];
extern const unsigned long report_css_size;
extern const unsigned char report_js[];
extern const unsigned long report_js_size;
}  // namespace gradual::embedded

namespace gradual::lab {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN and no Inf: null stands for both.
Json number(double v) { return std::isfinite(v) ? Json(v) : Json(nullptr); }
Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (double v : values) list.push_back(number(v));
  return list;
}
// A reference, because a copy would convert a number that is not whole, whatever its size.
std::int64_t whole(const Json& j) { return j.get_ref<const std::int64_t&>(); }
double real(const Json& j) { return j.is_null() ? std::numeric_limits<double>::quiet_NaN() : j.get<double>(); }

Json peak_bytes(const Result& r) {
  Json j = Json::object();
  for (int i = 0; i < kCategories; ++i)
    j[to_string(static_cast<Category>(i))] = r.peak_bytes[static_cast<std::size_t>(i)];
  j["total"] = r.peak_total;
  return j;
}

Json curve_json(const Curve& c) {
  return {{"step", c.step},
          {"loss", numbers(c.loss)},
          {"scale", numbers(c.scale)},
          {"skipped", c.skipped},
          {"underflow_percent", numbers(c.underflow_percent)}};
}

Json cast_json(const CastRow& c) {
  return {{"role", c.role},
          {"layer", c.layer},
          {"kind", c.kind},
          {"elements", c.elements},
          {"underflow_percent", c.underflow_percent},
          {"overflow_percent", c.overflow_percent},
          {"nan", c.nan}};
}
CastRow cast_from(const Json& j) {
  return {.role = j.at("role"),
          .layer = j.at("layer"),
          .kind = j.value("kind", ""),
          .elements = whole(j.at("elements")),
          .nan = whole(j.at("nan")),
          .underflow_percent = j.at("underflow_percent"),
          .overflow_percent = j.at("overflow_percent")};
}

Json histogram_json(const Histogram& h) {
  Json format;  // null where there is none
  if (!h.format.empty())
    format = {{"name", h.format},
              {"zero_below_exponent", h.zero_below_exponent},
              {"min_normal_exponent", h.min_normal_exponent},
              {"max_exponent", h.max_exponent}};
  return {{"role", h.role},
          {"first_exponent", h.first_exponent},
          {"counts", h.counts},
          {"as_if", h.as_if},
          {"format", format}};
}
Histogram histogram_from(const Json& j) {
  Histogram h;
  h.role = j.at("role");
  h.first_exponent = static_cast<int>(whole(j.at("first_exponent")));
  for (const Json& n : j.at("counts")) h.counts.push_back(whole(n));
  h.as_if = j.at("as_if");
  if (const Json& f = j.at("format"); !f.is_null()) {
    h.format = f.at("name");
    // earlier versions stored the exponent of the smallest subnormal number, half of which is the limit
    h.zero_below_exponent =
        static_cast<int>(f.contains("zero_below_exponent") ? whole(f["zero_below_exponent"])
                                                           : whole(f.at("min_subnormal_exponent")) - 1);
    h.min_normal_exponent = static_cast<int>(whole(f.at("min_normal_exponent")));
    h.max_exponent = static_cast<int>(whole(f.at("max_exponent")));
  }
  return h;
}

Json finding_json(const Finding& f) {
  Json j = {{"cause", f.cause},
            {"phase", f.phase},
            {"op", f.op},
            {"site", f.site},
            {"step", f.step < 0 ? Json(nullptr) : Json(f.step)},
            {"sentence", f.sentence},
            {"precision", f.precision},
            {"remedy", f.remedy},
            {"cure", f.cure.empty() ? Json(nullptr) : Json::parse(f.cure)},
            {"cures", Json::array()},
            {"tried", nullptr}};
  for (const Finding::Cure& c : f.cures) j["cures"].push_back({{"edit", Json::parse(c.edit)}, {"remedy", c.remedy}});
  if (f.tried)
    j["tried"] = {
        {"accuracy", number(f.tried->accuracy)}, {"loss", number(f.tried->loss)}, {"verdict", f.tried->verdict}};
  return j;
}
Finding finding_from(const Json& j) {
  Finding f{.cause = j.at("cause"),
            .phase = j.at("phase"),
            .op = j.at("op"),
            .site = j.at("site"),
            .step = j.at("step").is_null() ? -1 : whole(j["step"]),
            .sentence = j.at("sentence"),
            .remedy = j.at("remedy"),
            .precision = j.at("precision")};
  if (const Json& cure = j.at("cure"); !cure.is_null()) f.cure = cure.dump();
  if (j.contains("cures"))
    for (const Json& c : j["cures"]) f.cures.push_back({c.at("edit").dump(), c.at("remedy")});
  if (const Json& t = j.at("tried"); !t.is_null())
    f.tried = Finding::Tried{real(t.at("accuracy")), real(t.at("loss")), t.at("verdict")};
  return f;
}

template <class T> Json list(const std::vector<T>& values, Json (*json)(const T&)) {
  Json out = Json::array();
  for (const T& v : values) out.push_back(json(v));
  return out;
}

Json difference_json(const std::optional<Difference>& d) {
  return d ? Json{{"mean", number(d->mean)}, {"half_interval", number(d->half)}} : Json(nullptr);
}
std::optional<Difference> difference_from(const Json& run, const char* key) {
  if (!run.contains(key) || run[key].is_null()) return std::nullopt;
  return Difference{real(run[key].at("mean")), real(run[key].at("half_interval"))};
}

Json result_json(const Result& r, bool with_curves) {
  Json j = {{"recipe", r.recipe},
            {"model", r.model},
            {"data", r.data},
            {"seed", r.seed},
            {"epochs", r.epochs},
            {"steps", r.steps},
            {"skipped_steps", r.skipped_steps},
            {"final_scale", number(r.final_scale)},
            {"train_loss", number(r.train_loss)},
            {"test_loss", number(r.test_loss)},
            {"test_accuracy", number(r.test_accuracy)},
            {"test_samples", r.test_samples},
            {"ms_per_step", number(r.ms_per_step)},
            {"peak_bytes", peak_bytes(r)},
            {"underflow_percent", number(r.underflow_percent)},
            {"overflow_percent", number(r.overflow_percent)},
            {"zero_percent", number(r.zero_percent)},
            {"status", r.status},
            {"verdict", r.verdict},
            {"difference", difference_json(r.difference)},
            {"loss_difference", difference_json(r.loss_difference)},
            {"findings", list(r.findings, finding_json)},
            {"device", r.device},
            {"batch", r.batch},
            {"lr", number(r.lr)},
            {"optimizer", r.optimizer},
            {"definition", r.definition.empty() ? Json(nullptr) : Json::parse(r.definition)},
            {"casts", list(r.casts, cast_json)},
            {"step_errors", r.errors ? Json::parse(to_json(*r.errors)) : Json(nullptr)}};
  if (with_curves) {
    j["settings"] = r.settings;
    j["curve"] = curve_json(r.curve);
    j["histograms"] = list(r.histograms, histogram_json);
    j["what_if"] = r.what_if.empty() ? Json(nullptr) : Json::parse(r.what_if);
  }
  return j;
}

Result result_from(const Json& j, const std::string& file) {
  Result r;
  r.recipe = j.at("recipe");
  r.model = j.at("model");
  r.data = j.at("data");
  r.seed = whole(j.at("seed"));
  r.epochs = whole(j.at("epochs"));
  r.steps = whole(j.at("steps"));
  r.skipped_steps = whole(j.at("skipped_steps"));
  r.final_scale = real(j.at("final_scale"));
  r.train_loss = real(j.at("train_loss"));
  r.test_loss = real(j.at("test_loss"));
  r.test_accuracy = real(j.at("test_accuracy"));
  r.ms_per_step = real(j.at("ms_per_step"));
  for (int i = 0; i < kCategories; ++i)
    r.peak_bytes[static_cast<std::size_t>(i)] = whole(j.at("peak_bytes").at(to_string(static_cast<Category>(i))));
  r.peak_total = whole(j.at("peak_bytes").at("total"));
  r.underflow_percent = real(j.at("underflow_percent"));
  r.overflow_percent = real(j.at("overflow_percent"));
  r.zero_percent = j.contains("zero_percent") ? real(j["zero_percent"]) : std::numeric_limits<double>::quiet_NaN();
  r.test_samples = j.contains("test_samples") ? whole(j["test_samples"]) : 0;
  r.status = j.at("status");
  r.verdict = j.value("verdict", "");
  r.difference = difference_from(j, "difference");
  r.loss_difference = difference_from(j, "loss_difference");
  if (j.contains("findings"))
    for (const Json& f : j["findings"]) r.findings.push_back(finding_from(f));
  r.device = j.value("device", "cpu");
  r.batch = j.contains("batch") ? whole(j["batch"]) : 0;
  r.lr = j.contains("lr") ? real(j["lr"]) : 0;
  r.optimizer = j.value("optimizer", "");
  if (j.contains("definition") && !j["definition"].is_null()) r.definition = j["definition"].dump();
  for (const Json& c : j.at("casts")) r.casts.push_back(cast_from(c));
  if (j.contains("step_errors") && !j["step_errors"].is_null()) r.errors = step_errors_from(j["step_errors"].dump());
  if (!j.contains("curve")) return r;  // results.json
  r.settings = j.at("settings");
  const Json& c = j.at("curve");
  for (const Json& n : c.at("step")) r.curve.step.push_back(whole(n));
  for (const Json& v : c.at("loss")) r.curve.loss.push_back(real(v));
  for (const Json& v : c.at("scale")) r.curve.scale.push_back(real(v));
  r.curve.skipped = c.at("skipped").get<std::vector<bool>>();
  for (const Json& v : c.at("underflow_percent")) r.curve.underflow_percent.push_back(real(v));
  const std::size_t steps = r.curve.step.size();
  for (const std::size_t n :
       {r.curve.loss.size(), r.curve.scale.size(), r.curve.skipped.size(), r.curve.underflow_percent.size()})
    if (n != steps) throw_error(fmt::format("{}: a curve of {} steps has a column of {}", file, steps, n));
  for (const Json& h : j.at("histograms")) r.histograms.push_back(histogram_from(h));
  if (j.contains("what_if") && !j["what_if"].is_null()) r.what_if = j["what_if"].dump();
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

// A user's path may contain invalid UTF-8; it is replaced by U+FFFD.
std::string to_text(const Json& j, int indent = -1) {
  return j.dump(indent, ' ', false, Json::error_handler_t::replace);
}

void replace(std::string& text, const std::string& mark, const std::string& by) {
  text.replace(text.find(mark), mark.size(), by);
}

}  // namespace

std::string results_json(const std::vector<Result>& results, bool with_curves) {
  return to_text(document(results, with_curves), with_curves ? -1 : 2) + "\n";
}

std::vector<Result> results_from_json(const std::string& text, const std::string& file) {
  try {
    std::vector<Result> results;
    const Json all = Json::parse(bounded_json(text));
    for (const Json& run : all.at("runs")) results.push_back(result_from(run, file));
    return results;
  } catch (const nlohmann::json::exception& e) { throw_error(file + " is no file of the lab's: " + e.what()); }
}

std::string curves_csv(const std::vector<Result>& results) {
  std::string text = "recipe,seed,step,loss,scale,skipped,underflow_percent\n";
  for (const Result& r : results) {
    for (std::size_t i = 0; i < r.curve.step.size(); ++i) {
      const double underflow = r.curve.underflow_percent[i];
      text += fmt::format("{},{},{},{},{},{},{}\n", inspect::csv_field(r.recipe), r.seed, r.curve.step[i],
                          r.curve.loss[i], r.curve.scale[i], r.curve.skipped[i] ? 1 : 0,
                          std::isnan(underflow) ? std::string() : fmt::format("{}", underflow));
    }
  }
  return text;
}

std::string runs_csv(const std::vector<Result>& results) {
  const auto line = [](const Result& r) {
    Json j = result_json(r, false);
    j["peak_bytes"] = r.peak_total;
    for (const char* nested : {"findings", "definition", "casts", "step_errors", "difference", "loss_difference"})
      j.erase(nested);
    return to_text(j) + "\n";
  };
  std::string lines = line({});  // for the header
  for (const Result& r : results) lines += line(r);
  return inspect::csv_of(lines);
}

std::string report_html(const std::vector<Result>& results) {
  const auto text_of = [](const unsigned char* bytes, unsigned long size) {
    return std::string(reinterpret_cast<const char*>(bytes), size);
  };
  std::string html = text_of(embedded::report_html_in, embedded::report_html_in_size);
  replace(html, "@CSS@", text_of(embedded::report_css, embedded::report_css_size));
  replace(html, "@JS@", text_of(embedded::report_js, embedded::report_js_size));
  // "<" occurs only in strings, where HTML would interpret "</script" and "<!--"
  std::string data = to_text(document(results, true));
  for (std::size_t at = 0; (at = data.find('<', at)) != std::string::npos; at += 6) data.replace(at, 1, "\\u003c");
  replace(html, "@DATA@", data);
  return html;
}

}  // namespace gradual::lab
