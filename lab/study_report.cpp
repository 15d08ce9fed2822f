#include "study_report.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "../core/files/atomic_file.h"
#include "../pt2/module.h"
#include "layer_kinds.h"
#include "studied_step.h"

namespace gradual::lab {

std::string layers_with_kinds(nn::Module& model) {
  std::string text;
  for (const auto& [path, module] : model.named_modules()) {
    const bool has_own = !path.empty() && !module->named_parameters().empty() && module->named_modules().size() == 1;
    if (has_own) text += fmt::format("{}{} ({})", text.empty() ? "layers: " : ", ", path, pt2::kind_of(*module));
  }
  return text.empty() ? text : text + "\n";
}

std::string step_report(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                        const StudyOptions& options, const StepReportOptions& report) {
  StudiedStep step(make_model, data, recipe, options);
  std::string text = fmt::format("{}, step {}, loss {:.9g}\n{}\n{}", recipe.name, step.step, step.loss,
                                 layers_with_kinds(step.study.model()), to_string(step));
  if (report.ledger) text += "\nLedger\n" + step.ledger.to_string();
  if (report.shadow) text += "\nShadow\n" + step.shadow.to_string();
  if (report.folder.empty()) return text;
  std::filesystem::create_directories(report.folder);
  const auto write = [&](const char* file, const std::string& content) {
    write_file_atomically(report.folder + "/" + file, content);
  };
  write("ledger.csv", step.ledger.to_csv());
  write("ledger.jsonl", step.ledger.to_jsonl());
  write("shadow.csv", step.shadow.to_csv());
  write("updates.csv", step.updates.to_csv());
  if (step.sites) write("gradients.csv", to_csv(*step.sites));
  if (!step.blocks.sites().empty()) write("blocks.csv", step.blocks.to_csv());
  return text + fmt::format("\nfiles: {}\n", report.folder);
}

std::string diff_report(const MakeModel& make_model, const LabData& data, const amp::Recipe& first,
                        const amp::Recipe& second, const StudyOptions& options, const DiffReportOptions& report) {
  DiffedStep step(make_model, data, first, second, report.trained_by ? *report.trained_by : first, options);
  const inspect::ShadowDiff& diff = step.diff();
  if (!report.csv.empty()) write_file_atomically(report.csv, diff.to_csv());
  return fmt::format("step {}\n{}{}", options.step, diff.to_string(first.name, second.name, layer_names(step.model())),
                     layers_with_kinds(step.model()));
}

}  // namespace gradual::lab
