// gradual-lab report: writes a folder's report anew. gradual-lab compare: the results of several folders in one report.
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/support/error.h>
#include <gradual/lab/folder.h>
#include <gradual/lab/table.h>

#include <algorithm>
#include <filesystem>

#include "command_line.h"
#include "commands.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

// A recipe of one folder that another has too carries the folder's name.
void append(std::vector<Result>& all, std::vector<Result> more, const std::string& folder) {
  const auto known = [&](const std::string& recipe) {
    return std::ranges::any_of(all, [&](const Result& r) { return r.recipe == recipe; });
  };
  for (Result& r : more)
    if (known(r.recipe)) r.recipe += " (" + folder + ")";
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

int report_command(int argc, char** argv) {
  std::string folder;
  CLI::App app("Writes the report.html of a folder of results anew, also of results of an earlier version.\n",
               "gradual-lab report");
  app.add_option("DIR", folder, "the folder with results.json")->required();
  if (const std::optional<int> status = parse(app, argc, argv)) return *status;
  const std::vector<Result> results = load_results(folder);
  const std::string file = (std::filesystem::path(folder) / "report.html").string();
  write_file_atomically(file, report_html(results));
  say(stdout, "{}\nreport: {}\n", table(results, table_options(false)), file);
  return 0;
}

int compare_command(int argc, char** argv) {
  std::vector<std::string> folders;
  std::string out = "gradual-lab-compare";
  bool overwrite = false;
  CLI::App app("Puts the results of several folders into one report.\n", "gradual-lab compare");
  app.add_option("DIR", folders, "folders with results.json, two or more")->required();
  app.add_option("--out", out, "folder for results.json, runs.csv, curves.csv and report.html")->capture_default_str();
  app.add_flag("--overwrite", overwrite, "replace the results in that folder");
  if (const std::optional<int> status = parse(app, argc, argv)) return *status;
  if (folders.size() < 2) throw_error("compare takes two folders or more, not 1");
  std::vector<Result> all;
  for (const std::string& folder : folders) append(all, load_results(folder), folder);
  const Folder written(out, overwrite ? Existing::overwrite : Existing::refuse);
  written.write(all);
  say(stdout, "{}\nreport: {}/report.html\n", table(all, table_options(false)), out);
  return 0;
}

}  // namespace gradual::lab
