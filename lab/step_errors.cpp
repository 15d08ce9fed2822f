#include "step_errors.h"

#include <algorithm>
#include <cmath>

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

}  // namespace

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
