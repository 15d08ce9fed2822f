#include "study_report.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>

#include "../core/files/atomic_file.h"
#include "../core/support/generator.h"
#include "../core/support/throwf.h"
#include "../inspect/block_xray.h"
#include "../inspect/diff.h"
#include "../inspect/gradient_sites.h"
#include "../inspect/ledger.h"
#include "../inspect/shadow.h"
#include "../inspect/update_meter.h"

namespace gradual::lab {

std::string layers_with_kinds(nn::Module& model) {
  std::string text;
  for (const auto& [path, module] : model.named_modules()) {
    const bool has_own = !path.empty() && !module->named_parameters().empty() && module->named_modules().size() == 1;
    if (has_own) text += fmt::format("{}{} ({})", text.empty() ? "layers: " : ", ", path, module->kind());
  }
  return text.empty() ? text : text + "\n";
}

std::string step_report(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                        const StudyOptions& options, const StepReportOptions& report) {
  Study study(make_model, data, recipe, options);
  std::optional<inspect::GradientSites> sites;
  if (recipe.quantization || recipe.mode == amp::Mode::autocast)
    sites = inspect::gradient_sites(
        recipe, study.model(), [&] { return study.loss(); }, study.run().quantization());
  inspect::Ledger ledger(study.model());
  inspect::Shadow shadow(study.model(), &study.run().optimizer(), {.attribution = true});
  inspect::UpdateMeter meter(study.model());
  inspect::XrayObserver blocks(study.model());
  const double loss = [&] {
    const ObserverScope first(ledger);
    const ObserverScope second(shadow);
    const ObserverScope third(meter);
    const ObserverScope fourth(blocks);
    return study.step().loss.item();
  }();
  if (!std::isfinite(loss))
    throwf(
        "the loss of {} at step {} is {}; an earlier --step can be studied, and a comparison with fp32 says why the "
        "run diverges",
        recipe.name, options.step, loss);
  std::string text =
      fmt::format("{}, step {}, loss {:.9g}\n{}\nThe loss, and the ops whose errors move it\n{}", recipe.name,
                  options.step, loss, layers_with_kinds(study.model()), to_string(shadow.attribution()));
  text += "\nWho loses the bits\n" + shadow.by_layer();
  if (sites) text += "\nWhat each site alone does to the gradients\n" + to_string(*sites);
  text += "\nThe updates\n" + meter.to_string();
  if (!blocks.sites().empty()) text += "\nThe scales of blocks\n" + blocks.to_string();
  if (report.ledger) text += "\nLedger\n" + ledger.to_string();
  if (report.shadow) text += "\nShadow\n" + shadow.to_string();
  if (report.folder.empty()) return text;
  std::filesystem::create_directories(report.folder);
  const auto write = [&](const char* file, const std::string& content) {
    write_file_atomically(report.folder + "/" + file, content);
  };
  write("ledger.csv", ledger.to_csv());
  write("ledger.jsonl", ledger.to_jsonl());
  write("shadow.csv", shadow.to_csv());
  write("updates.csv", meter.to_csv());
  if (sites) write("gradients.csv", to_csv(*sites));
  if (!blocks.sites().empty()) write("blocks.csv", blocks.to_csv());
  return text + fmt::format("\nfiles: {}\n", report.folder);
}

namespace {

// The step under a recipe, of a model that was trained with another recipe.
struct Side {
  std::shared_ptr<nn::Module> model;
  std::optional<amp::RecipeRun> run;
  std::optional<inspect::Shadow> shadow;
};

void observe(Side& side, const amp::Recipe& recipe, const MakeModel& make, const StudyOptions& options,
             Study& trained) {
  default_generator().manual_seed(options.seed);
  side.model = make();
  side.model->to(options.device);
  side.model->load_state_dict(trained.run().master_state_dict());
  side.run.emplace(recipe, *side.model, make_optimizer(options.optimizer, options.lr, options.training.rates),
                   amp::RunOptions{.seed = options.seed});
  // Takes over histories, loss scale and moments, if they are this recipe's own.
  if (trained.run().recipe().name == recipe.name) side.run->load_state_dict(trained.run().state_dict());
  side.shadow.emplace(*side.model, &side.run->optimizer(), inspect::ShadowOptions{.attribution = true});
  default_generator().manual_seed(options.seed);
  const ObserverScope scope(*side.shadow);
  side.run->backward(side.run->forward([&] { return trained.loss(*side.model); }));
}

}  // namespace

std::string diff_report(const MakeModel& make_model, const LabData& data, const amp::Recipe& first,
                        const amp::Recipe& second, const StudyOptions& options, const DiffReportOptions& report) {
  Study trained(make_model, data, report.trained_by ? *report.trained_by : first, options);
  std::array<Side, 2> sides;
  observe(sides[0], first, make_model, options, trained);
  observe(sides[1], second, make_model, options, trained);
  const inspect::ShadowDiff diff(*sides[0].shadow, *sides[1].shadow);
  if (!report.csv.empty()) write_file_atomically(report.csv, diff.to_csv());
  return fmt::format("step {}\n{}{}", options.step, diff.to_string(first.name, second.name),
                     layers_with_kinds(trained.model()));
}

}  // namespace gradual::lab
