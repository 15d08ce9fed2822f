#include "step_errors.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "../inspect/shadow.h"

namespace gradual::lab {
namespace {

using Json = nlohmann::ordered_json;
using Row = StepErrors::Row;

// The numbers of a row by name. null stands for NaN and Inf.
constexpr std::pair<const char*, double Row::*> kNumbers[] = {{"local", &Row::local},
                                                              {"inherited", &Row::inherited},
                                                              {"total", &Row::total},
                                                              {"local_ulps", &Row::local_ulps},
                                                              {"total_ulps", &Row::total_ulps},
                                                              {"cosine", &Row::cosine},
                                                              {"share", &Row::share}};
constexpr std::pair<const char*, std::string Row::*> kTexts[] = {
    {"phase", &Row::phase}, {"op", &Row::op}, {"layer", &Row::layer}, {"product", &Row::product}};

double real(const Json& j) { return j.is_null() ? std::numeric_limits<double>::quiet_NaN() : j.get<double>(); }

}  // namespace

StepErrors step_errors(const inspect::Shadow& shadow, std::int64_t step) {
  const inspect::Attribution a = shadow.attribution();
  StepErrors errors{.step = step, .loss = a.loss, .exact_loss = a.exact_loss, .explained = a.explained};
  for (const inspect::ShadowRow& r : shadow.rows()) {
    if (r.phase == Phase::optimizer || (r.total.squares == 0 && r.local.lost == 0)) continue;
    errors.rows.push_back({.phase = std::string(to_string(r.phase)),
                           .op = r.op,
                           .layer = r.module,
                           .product = r.product,
                           .local = r.local.relative(),
                           .inherited = r.inherited.relative(),
                           .total = r.total.relative(),
                           .local_ulps = r.local.mean_ulps(),
                           .total_ulps = r.total.mean_ulps(),
                           .cosine = r.cosine,
                           .share = r.share});
  }
  return errors;
}

std::string to_json(const StepErrors& e) {
  Json rows = Json::array();
  for (const Row& r : e.rows) {
    Json row = Json::object();
    for (const auto& [name, text] : kTexts) row[name] = r.*text;
    for (const auto& [name, value] : kNumbers) row[name] = r.*value;
    rows.push_back(std::move(row));
  }
  return Json{{"step", e.step},
              {"loss", e.loss},
              {"exact_loss", e.exact_loss},
              {"explained", e.explained},
              {"rows", std::move(rows)}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

StepErrors step_errors_from(const std::string& written) {
  const Json json = Json::parse(written);
  StepErrors e{.step = json.at("step").get_ref<const std::int64_t&>(),
               .loss = real(json.at("loss")),
               .exact_loss = real(json.at("exact_loss")),
               .explained = real(json.at("explained"))};
  for (const Json& j : json.at("rows")) {
    Row& row = e.rows.emplace_back();
    for (const auto& [name, text] : kTexts) row.*text = j.at(name);
    for (const auto& [name, value] : kNumbers) row.*value = real(j.at(name));
  }
  return e;
}

}  // namespace gradual::lab
