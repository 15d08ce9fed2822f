#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "../core/support/throwf.h"
#include "csv_text.h"
#include "shadow.h"

namespace gradual::inspect {
namespace {

std::string decibels(const ErrorSum& e) {
  if (e.squares == 0) return "exact";
  return e.exact_squares == 0 ? "-" : fmt::format("{:.1f}", e.sqnr_db());
}

// The source of a row's error, for by_layer(): its product and part, or its phase.
std::string role(const ShadowRow& row) {
  if (row.product) return std::string(inspect::to_string(*row.product));
  if (row.phase == Phase::optimizer) return "update";
  return std::string(gradual::to_string(row.phase)) + (row.cause_kind == CauseKind::program ? "" : ", casts");
}

// The columns of the file, in order.
nlohmann::ordered_json json(const ShadowRow& r) {
  std::string parts;
  for (const ErrorPart& p : r.parts)
    parts += fmt::format("{}{} {:.6g} {:.6g}", parts.empty() ? "" : "; ", inspect::to_string(p.source),
                         r.local.exact_squares > 0 ? std::sqrt(p.squares / r.local.exact_squares) : 0, p.share);
  nlohmann::ordered_json j;
  j["number"] = r.number;
  j["phase"] = gradual::to_string(r.phase);
  j["op"] = r.op;
  j["parameter"] = r.parameter;
  j["backward_of"] = r.backward_of;
  j["module"] = r.module;
  j["line"] = r.line;
  j["cause"] = r.cause;
  j["results"] = r.results;
  j["product"] = r.product ? inspect::to_string(*r.product) : "";
  j["local_relative"] = r.local.relative();
  j["local_max_ulps"] = r.local.max_ulps;
  j["local_mean_ulps"] = r.local.mean_ulps();
  j["local_sqnr_db"] = r.local.sqnr_db();
  j["local_bias"] = r.local.bias();
  j["local_bias_interval"] = r.local.bias_interval();
  j["local_gain"] = r.local.gain();
  j["local_gain_interval"] = r.local.gain_interval();
  j["inherited_relative"] = r.inherited.relative();
  j["total_relative"] = r.total.relative();
  j["total_max_ulps"] = r.total.max_ulps;
  j["total_sqnr_db"] = r.total.sqnr_db();
  j["total_bias"] = r.total.bias();
  j["total_bias_interval"] = r.total.bias_interval();
  j["total_gain"] = r.total.gain();
  j["total_gain_interval"] = r.total.gain_interval();
  j["cosine"] = r.cosine;
  j["lost"] = r.local.lost;
  j["decided_otherwise"] = r.decided_otherwise;
  j["share"] = r.share;
  j["first_order"] = r.first_order;
  j["parts"] = parts;
  j["not_exact"] = r.not_exact;
  return j;
}

}  // namespace

std::string Shadow::to_string() const {
  std::string text = fmt::format("{:>5}  {:<9}  {:<44}  {:<20}  {:>9}  {:>9}  {:>16}  {:>9}  {:>9}  {:>8}  {:>9}  {}\n",
                                 "row", "phase", "op", "result", "local dB", "ulps max", "size", "inherited",
                                 "total dB", "cosine", "share", "line");
  for (const ShadowRow& r : rows_) {
    text += fmt::format(
        "{:>5}  {:<9}  {:<44}  {:<20}  {:>9}  {:>9.3g}  {:>16}  {:>9}  {:>9}  {:>8.5f}  {:>9}  {}{}\n", r.number,
        gradual::to_string(r.phase), r.site(), r.results, decibels(r.local), r.local.max_ulps,
        r.local.squares == 0 ? "" : with_interval(r.local.gain(), r.local.gain_interval()), decibels(r.inherited),
        decibels(r.total), r.cosine, r.share == 0 ? "" : fmt::format("{:+.2e}", r.share), r.line,
        r.decided_otherwise > 0 ? fmt::format("  ({:.2g}% decided otherwise)", 100 * r.decided_otherwise) : "");
    for (const ErrorPart& part : r.parts)
      if (part.squares > 0)
        text += fmt::format("{:>18}  {:<44}  {:<20}  {:>9.1f}{:>69}\n", "",
                            fmt::format("  rounding: {}", inspect::to_string(part.source)), "",
                            10 * std::log10(r.local.exact_squares / part.squares),
                            part.share == 0 ? "" : fmt::format("{:+.2e}", part.share));
  }
  return text;
}

std::string Shadow::to_csv() const {
  std::string text = json({}).dump() + "\n";
  for (const ShadowRow& r : rows_) text += json(r).dump() + "\n";
  return csv_of(text);
}

std::string Shadow::by_layer(const LayerNames& name) const {
  struct Line {
    std::string layer, role;
    double squares = 0;
    double exact = 0;
    double share = 0;
  };
  std::vector<Line> lines;
  const auto line = [&](const std::string& layer, const std::string& what) -> Line& {
    const auto found = std::ranges::find_if(lines, [&](const Line& l) { return l.layer == layer && l.role == what; });
    return found != lines.end() ? *found : lines.emplace_back(Line{layer, what});
  };
  for (const ShadowRow& r : rows_) {
    const std::string layer = r.phase == Phase::optimizer ? r.parameter : r.module;
    std::vector<ErrorPart> parts = r.parts;
    double own = r.share;
    for (const ErrorPart& p : parts) own -= p.share;
    // The parts of a product sum to its local error; errors from before an op are not in it.
    if (parts.empty() || is_before(parts.back().source)) parts.push_back({ErrorSource::whole, r.local.squares, own});
    for (const ErrorPart& p : parts) {
      Line& l =
          line(layer,
               p.source == ErrorSource::whole ? role(r) : fmt::format("{} {}", role(r), inspect::to_string(p.source)));
      l.squares += p.squares;
      l.exact += r.local.exact_squares;
      l.share += p.share;
    }
  }
  std::string text = fmt::format("{:<24}  {:<24}  {:>12}  {:>12}\n", "layer", "what", "local error", "loss share");
  for (const Line& l : lines)
    if (l.squares != 0)
      text += fmt::format("{:<24}  {:<24}  {:>12.3e}  {:>12}\n", l.layer.empty() ? "-" : name(l.layer), l.role,
                          l.exact > 0 ? std::sqrt(l.squares / l.exact) : 0.0,
                          l.share == 0 ? "" : fmt::format("{:+.3e}", l.share));
  return text;
}

Attribution Shadow::attribution() const {
  if (!options_.attribution) throw_error("Shadow::attribution: make the Shadow with {.attribution = true}");
  if (!why_not_.empty()) throw_error("Shadow::attribution: of this backward there is none: " + why_not_);
  if (!root_) throw_error("Shadow::attribution: no backward was observed; run a whole step in the observer's scope");
  Attribution a{.loss = loss_, .exact_loss = exact_loss_};
  for (std::size_t i = first_row_; i < rows_.size(); ++i) {
    const ShadowRow& r = rows_[i];
    if (r.phase == Phase::forward)
      a.decisions += std::llround(r.decided_otherwise * static_cast<double>(r.total.elements));
    if (r.share == 0 && r.first_order == 0) continue;
    a.explained += r.share;
    a.first_order += r.first_order;
    a.rows.push_back(&r);
  }
  std::ranges::sort(a.rows, {}, [](const ShadowRow* r) { return -std::abs(r->share); });
  return a;
}

std::string to_string(const Attribution& a, std::size_t rows, const LayerNames& name) {
  std::string text =
      fmt::format("loss {:.9g}, in f64 {:.9g}: difference {:+.3e}\n", a.loss, a.exact_loss, a.difference());
  const auto percent = [&](double part) { return a.difference() != 0 ? 100 * part / a.difference() : 0.0; };
  // Errors of both signs cancel: the share of one is of the sum of all magnitudes, and at most all of it.
  double magnitudes = 0;
  for (const ShadowRow* r : a.rows) magnitudes += std::abs(r->share);
  const auto share_of = [&](double part) { return magnitudes > 0 ? 100 * std::abs(part) / magnitudes : 0.0; };
  const double rest = a.difference() - a.explained;
  const auto in_percent = [&](double part) {
    const double of_all = percent(part);
    return of_all >= 0 && of_all <= 100 ? fmt::format(" ({:.1f}%)", of_all) : std::string();
  };
  text += fmt::format("local errors explain {:+.3e}{} and leave {:+.3e}; to first order {:+.3e}{}\n", a.explained,
                      in_percent(a.explained), rest, a.first_order, in_percent(a.first_order));
  if (a.decisions) text += fmt::format("elements of forward for which f64 decides otherwise: {}\n", a.decisions);
  else if (std::abs(percent(rest)) > 5)
    text += "f64 decides nothing otherwise: the rest is of third order in the errors\n";
  for (std::size_t i = 0; i < std::min(rows, a.rows.size()); ++i) {
    const ShadowRow& r = *a.rows[i];
    text += fmt::format("  {:+.3e}  {:>7.1f}%  {}{}\n", r.share, share_of(r.share), r.site(name),
                        r.cause.empty() ? "" : " (" + r.cause + ")");
    for (const ErrorPart& p : r.parts)
      if (p.share != 0) text += fmt::format("  {:>10}  {:>+9.2e}  {}\n", "", p.share, inspect::to_string(p.source));
  }
  if (a.rows.size() > rows) text += fmt::format("  and {} more\n", a.rows.size() - rows);
  return text;
}

}  // namespace gradual::inspect
