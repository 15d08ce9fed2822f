// gradual-lab report: writes a folder's report anew. gradual-lab compare: the results of several folders in one report.
// gradual-lab figure: one figure of a report.
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/files/input_file.h>
#include <gradual/core/support/error.h>
#include <gradual/lab/folder.h>
#include <gradual/lab/folder_lock.h>
#include <gradual/lab/table.h>
#include <gradual/lab/tables.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "command_line.h"
#include "commands.h"
#include "temporary_folder.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

// A recipe of one folder that another has too carries the folder's name.
void append(std::vector<Result>& all, std::vector<Result> more, const std::string& folder) {
  const auto known = [&](const std::string& recipe) {
    return std::ranges::any_of(all, [&](const Result& r) { return r.recipe == recipe; });
  };
  for (Result& r : more)
    if (known(r.recipe)) r.recipe += " (" + printable(folder) + ")";
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// What headless Chromium prints for these arguments, which have no quotes. Error if there is none, or it fails.
std::string chromium(const std::string& arguments) {
  const std::string command =
      "b=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || exit 66; \"$b\" "
      "--headless "
      "--no-sandbox --disable-gpu --virtual-time-budget=20000 --window-size=1000,1400 --no-pdf-header-footer " +
      arguments + " 2>/dev/null";
  std::FILE* const page = popen(command.c_str(), "r");
  if (!page) throw_error("cannot start a shell for Chromium");
  std::string text;
  for (int c = 0; (c = std::fgetc(page)) != EOF;) text += static_cast<char>(c);
  const int status = pclose(page);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 66)
    throw_error(
        "figure draws with Chromium, and there is no chromium, chromium-browser or google-chrome in PATH; install the "
        "package chromium, or open report.html, where each figure has buttons that save it");
  if (status != 0) throw_error("Chromium failed to draw the figure");
  return text;
}

// One figure of the report of these results, as a whole file.
std::string figure(const std::vector<Result>& results, const std::string& id, bool pdf) {
  const TemporaryFolder folder("gradual-lab-figure");
  const std::string page = folder.path() + "/report.html";
  const std::string file = folder.path() + "/figure.pdf";
  write_file_atomically(page, report_html(results));
  const std::string dom = chromium(fmt::format("'--user-data-dir={}/profile' {} 'file://{}#figure={}'", folder.path(),
                                               pdf ? "'--print-to-pdf=" + file + "'" : "--dump-dom", page, id));
  if (pdf) return read_file(file);
  const std::size_t from = dom.find("<svg xmlns");
  const std::size_t to = dom.rfind("</svg>");
  if (from == std::string::npos || to == std::string::npos) throw_error("these results have no figure of this kind");
  return dom.substr(from, to - from) + "</svg>\n";
}

}  // namespace

int figure_command(int argc, char** argv) {
  const std::map<std::string, std::string> kinds = {
      {"loss", "loss"}, {"histogram", "histograms"}, {"heatmap", "heat"}, {"pareto", "pareto"}};
  std::string folder;
  std::string kind = "loss";
  std::string format = "svg";
  std::string out;
  OptionParser app("Writes one figure of a comparison as a file that opens alone. Draws with headless Chromium.\n",
                   "figure");
  app.add_option("DIR", folder, "the folder with results.json").required();
  app.add_option("--kind", kind, "loss, histogram, heatmap or pareto")
      .one_of({"heatmap", "histogram", "loss", "pareto"})
      .capture_default_str();
  app.add_option("--format", format, "svg or pdf").one_of({"svg", "pdf"}).capture_default_str();
  app.add_option("--out", out, "the file (default: DIR/KIND.FORMAT)");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  if (out.empty()) out = (std::filesystem::path(folder) / (kind + "." + format)).string();
  write_file_atomically(out, figure(load_results(folder), kinds.at(kind), format == "pdf"));
  say(stdout, "figure: {}\n", out);
  return 0;
}

int report_command(int argc, char** argv) {
  std::string folder;
  bool csv = false;
  bool latex = false;
  OptionParser app("Writes the report.html of a folder of results anew, also of results of an earlier version.\n",
                   "report");
  app.add_option("DIR", folder, "the folder with results.json").required();
  app.add_flag("--csv", csv, "write each table as DIR/tables/NAME.csv: results, pairs, findings, layers");
  app.add_flag("--latex", latex, "the same as DIR/tables/NAME.tex, for the package booktabs");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  const std::vector<Result> results = load_results(folder);
  const std::string file = (std::filesystem::path(folder) / "report.html").string();
  write_file_atomically(file, report_html(results));
  say_styled(stdout, fmt::format("{}\nreport: {}\n", table(results, table_options(false)), printable(file)));
  for (const bool as_latex : {false, true}) {
    if (!(as_latex ? latex : csv)) continue;
    for (const std::string& written : write_tables(results, folder + "/tables", as_latex))
      say(stdout, "table: {}\n", printable(written));
  }
  return 0;
}

int compare_command(int argc, char** argv) {
  std::vector<std::string> folders;
  std::string out = "gradual-lab-compare";
  bool overwrite = false;
  OptionParser app("Puts the results of several folders into one report.\n", "compare");
  app.add_option("DIR", folders, "folders with results.json, two or more").required();
  app.add_option("--out", out, "folder for results.json, runs.csv, curves.csv and report.html").capture_default_str();
  app.add_flag("--overwrite", overwrite, "replace the results in that folder");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  if (folders.size() < 2) throw_error("compare takes two folders or more, not 1");
  std::vector<Result> all;
  for (const std::string& folder : folders) append(all, load_results(folder), folder);
  const FolderLock lock(out);
  const Folder written(out, overwrite ? Existing::overwrite : Existing::refuse);
  written.write(all);
  say_styled(stdout, fmt::format("{}\nreport: {}/report.html\n", table(all, table_options(false)), printable(out)));
  return 0;
}

}  // namespace gradual::lab
