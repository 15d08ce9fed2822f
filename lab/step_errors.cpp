#include "step_errors.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "../core/formats/format.h"
#include "../inspect/block_xray.h"
#include "../inspect/shadow.h"
#include "../inspect/update_meter.h"

namespace gradual::lab {
namespace {

UpdateCloud cloud_of(const inspect::Update& u, std::int64_t step) {
  UpdateCloud c{.step = step, .dtype = std::string(to_string(u.dtype))};
  if (u.dtype != DType::f64) {  // which loses nothing here
    const Format f = format_of(u.dtype);
    c.mantissa_bits = f.mantissa_bits;
    c.least_exponent = std::ilogb(f.min_positive());
  }
  const auto log2 = [](double v) { return v == 0 ? std::nan("") : std::round(100 * std::log2(std::abs(v))) / 100; };
  for (const inspect::Update::Element& e : u.sample) {
    if (e.intended == 0 || !std::isfinite(e.intended) || !std::isfinite(e.weight)) continue;
    c.log2_weight.push_back(log2(e.weight));
    c.log2_update.push_back(log2(e.intended));
    c.arrives.push_back(std::round(100 * e.made / e.intended) / 100);
  }
  return c;
}

using Row = StepErrors::Row;

// The op of the table that has this name; custom for a user's function.
OpId op_named(std::string_view name) {
  for (int i = 0; i < kOpCount; ++i)
    if (to_string(static_cast<OpId>(i)) == name) return static_cast<OpId>(i);
  return OpId::custom;
}

// The gradient that a row of backward computes, where the row alone tells.
std::optional<inspect::Product> product_of(const Row& row) {
  if (row.product) return row.product;
  switch (op_named(row.op)) {
    case OpId::linear_backward_weight:
    case OpId::conv2d_backward_weight: return inspect::Product::wgrad;
    case OpId::conv2d_backward_input: return inspect::Product::dgrad;
    default: return std::nullopt;
  }
}

bool is_product(const Row& row) {
  const OpId op = op_named(row.op);
  const bool attention = op == OpId::flash_attention || op == OpId::flash_attention_backward;
  return row.product || (op_info(op).kind == OpKind::Contraction && !attention);
}

// `products`: those of a layer's backward, in order.
void name_products_of_layer(const std::vector<Row*>& products) {
  if (std::ranges::any_of(products, [](const Row* row) { return product_of(*row).has_value(); })) {
    for (Row* row : products) row->product = product_of(*row);
    return;
  }
  products.back()->product = inspect::Product::wgrad;
  if (products.size() > 1) products[products.size() - 2]->product = inspect::Product::dgrad;
}

}  // namespace

void name_products(std::vector<StepErrors::Row>& rows) {
  std::map<std::string, std::vector<Row*>> by_layer;
  for (Row& row : rows)
    if (row.phase == Phase::backward && is_product(row)) by_layer[row.layer].push_back(&row);
  for (const auto& [layer, products] : by_layer) name_products_of_layer(products);
}

StepErrors step_errors(const inspect::Shadow& shadow, std::int64_t step) {
  const inspect::Attribution a = shadow.attribution();
  StepErrors errors{.step = step, .loss = a.loss, .exact_loss = a.exact_loss, .explained = a.explained};
  for (const inspect::ShadowRow& r : shadow.rows()) {
    if (r.phase == Phase::optimizer || (r.total.squares == 0 && r.local.lost == 0)) continue;
    StepErrors::Row& row = errors.rows.emplace_back();
    row.phase = r.phase;
    row.op = r.op;
    row.layer = r.module;
    row.product = r.product;
    row.local = r.local.relative();
    row.inherited = r.inherited.relative();
    row.total = r.total.relative();
    row.local_ulps = r.local.mean_ulps();
    row.inherited_ulps = r.inherited.mean_ulps();
    row.total_ulps = r.total.mean_ulps();
    row.cosine = r.cosine;
    row.share = r.share;
    row.bias = r.local.bias();
    row.bias_interval = r.local.bias_interval();
    row.gain = r.local.gain();
    row.gain_interval = r.local.gain_interval();
  }
  name_products(errors.rows);
  return errors;
}

std::vector<BlockMap> block_maps(const inspect::XrayObserver& xrays) {
  std::vector<BlockMap> maps;
  for (const inspect::XrayObserver::Site& site : xrays.sites()) {
    const inspect::XrayRow& row = site.xray.running();
    BlockMap& map =
        maps.emplace_back(BlockMap{site.layer, site.operand, row.rule, row.block, site.xray.columns, {}, {}});
    for (const inspect::BlockXray::Block& b : site.xray.blocks) {
      map.clipped_percent.push_back(std::round(100 * b.clipped));
      map.regret_percent.push_back(std::round(100 * (b.error == b.best_error ? 1 : b.error / b.best_error)));
    }
  }
  return maps;
}

void add(std::vector<UpdateCurve>& curves, const inspect::UpdateMeter& meter, std::int64_t step, bool with_clouds) {
  for (const inspect::Update& u : meter.updates()) {
    auto curve = std::ranges::find(curves, u.parameter, &UpdateCurve::parameter);
    if (curve == curves.end()) curve = curves.insert(curve, {.parameter = u.parameter});
    curve->step.push_back(step);
    curve->vanished_percent.push_back(u.vanished_percent());
    curve->ratio.push_back(u.ratio());
    curve->arriving.push_back(u.arriving());
    if (UpdateCloud cloud = cloud_of(u, step); with_clouds && !cloud.arrives.empty()) curve->cloud = std::move(cloud);
  }
}

}  // namespace gradual::lab
