// Texts for people are in one table each. No other source contains one, and no source compares one.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/amp/rewrite.h>
#include <gradual/core/ops/call_cause.h>
#include <gradual/inspect/cause.h>
#include <gradual/inspect/error_source.h>
#include <gradual/inspect/update_meter.h>
#include <gradual/lab/outcome.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "support/source_dir.h"

using namespace gradual;
namespace fs = std::filesystem;

namespace {

struct Source {
  std::string path, text;
};

std::vector<Source> sources() {
  std::vector<Source> all;
  for (const char* folder : {"core", "autograd", "nn", "optim", "data", "amp", "cuda", "inspect", "dist", "pt2", "lab"})
    for (const auto& entry : fs::recursive_directory_iterator(source_dir() + "/" + folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cpp" && extension != ".h" && extension != ".cu" && extension != ".cuh" && extension != ".js")
        continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      all.push_back({fs::relative(entry.path(), source_dir()).string(), text.str()});
    }
  return all;
}

// The parts of a sentence between its {facts}, those of several words.
std::vector<std::string> pieces(std::string_view sentence) {
  std::vector<std::string> all;
  while (!sentence.empty()) {
    const std::size_t end = std::min(sentence.find('{'), sentence.size());
    std::string piece(sentence.substr(0, end));
    piece.erase(0, piece.find_first_not_of(" ,:"));
    piece.erase(piece.find_last_not_of(' ') + 1);
    if (piece.find(' ') != std::string::npos) all.push_back(piece);
    const std::size_t next = sentence.find('}', end);
    sentence = next == std::string_view::npos ? "" : sentence.substr(next + 1);
  }
  return all;
}

// True for a text that is no term of the field, such as "FP32 masters".
bool is_sentence(std::string_view text) { return std::ranges::count(text, ' ') >= 3; }

struct Texts {
  std::vector<std::string> sentences, names;
  std::vector<std::string> causes;  // of calls: core/ops/call_cause.h is their table
};

Texts display_texts() {
  Texts all;
  for (const inspect::CauseInfo& c : inspect::kCauseInfos) {
    // A name of one word ("data") is the name of other things too.
    if (c.name.find('-') != std::string_view::npos) all.names.emplace_back(c.name);
    for (const std::string_view text : {c.evidence, c.sentence, c.cure})
      if (is_sentence(text)) all.sentences.emplace_back(text);
  }
  for (const lab::VerdictInfo& v : lab::kVerdictInfos) {
    all.names.emplace_back(v.name);
    for (const std::string_view text : {v.sentences[0], v.sentences[1], v.sentences[2], v.beside, v.meaning})
      for (std::string& piece : pieces(text)) all.sentences.push_back(std::move(piece));
  }
  for (const lab::NoteInfo& note : lab::kNoteInfos)
    for (std::string& piece : pieces(note.sentence)) all.sentences.push_back(std::move(piece));
  for (int i = 1; i < static_cast<int>(lab::Status::count_); ++i)
    all.names.emplace_back(to_string(static_cast<lab::Status>(i)));
  for (const amp::Role role : {amp::Role::activation, amp::Role::error, amp::Role::weight_gradient})
    all.names.emplace_back(to_string(role));  // "weight" is the name of parameters too
  for (int i = 0; i < inspect::kUpdateParts; ++i)
    all.names.emplace_back(to_string(static_cast<inspect::UpdatePart>(i)));
  for (const Phase phase : {Phase::forward, Phase::backward, Phase::optimizer})
    all.names.emplace_back(to_string(phase));
  for (const CallCause& cause : {causes::attention, causes::recomputation, causes::loss_scaling,
                                 causes::loss_scale_check, causes::statistics, causes::conversion}) {
    all.names.emplace_back(cause.text);
    all.causes.emplace_back(cause.text);
  }
  for (const inspect::ErrorSourceInfo& source : inspect::kErrorSources)
    if (source.name.size() > 2) all.names.emplace_back(source.name);  // "x", "w" and "dy" are operands everywhere
  for (const std::string_view rate : inspect::kRates)
    if (rate != to_string(inspect::Rate::lr)) all.names.emplace_back(rate);  // "lr" is an option of the program too
  // Names of functions.
  for (const char* text : {"checkpoint", "quantize", " rewritten by "}) all.names.emplace_back(text);
  return all;
}

// The line where a text between backquotes breaks, which is where a statement was cut; 0 if none does. A text may be
// continued in a ${..} over several lines.
int broken_text(const std::string& script) {
  std::vector<int> open;  // for each text that is open, the braces that are open in its ${..}; -1: in the text itself
  int line = 0;
  std::istringstream lines(script);
  for (std::string read; std::getline(lines, read);) {
    ++line;
    const std::string code = read.find_first_not_of(' ') == read.find("//") ? "" : read;
    for (std::size_t i = 0; i < code.size(); ++i) {
      const bool in_text = !open.empty() && open.back() < 0;
      if (code[i] == '`') {
        if (in_text) open.pop_back();
        else open.push_back(-1);
      } else if (in_text) {
        if (code.compare(i, 2, "${") == 0) open.back() = 0;
      } else if (!open.empty()) {
        if (code[i] == '{' && (i == 0 || code[i - 1] != '$')) ++open.back();
        if (code[i] == '}') --open.back();
      }
    }
    if (!open.empty() && open.back() < 0) return line;
  }
  return 0;
}

// What comes directly before or after a quoted name where code compares it.
constexpr const char* kComparisons[] = {
    "== {0}", "!= {0}", "{0} ==", "{0} !=", "starts_with({0}", "ends_with({0}", ".find({0}", ".contains({0})"};

// A line of code that compares the name; empty if there is none.
std::string comparison(const std::string& text, const std::string& name) {
  for (const char* form : kComparisons) {
    const std::size_t at = text.find(fmt::format(fmt::runtime(form), '"' + name + '"'));
    if (at == std::string::npos) continue;
    const std::size_t begin = text.rfind('\n', at) + 1;
    return text.substr(begin, text.find('\n', at) - begin);
  }
  return "";
}

}  // namespace

TEST_CASE("no source outside its table contains a display text") {
  const Texts texts = display_texts();
  CHECK(texts.sentences.size() > 70);
  const std::vector<Source> all = sources();
  CHECK(all.size() > 600);
  for (const Source& source : all)
    for (const std::string& sentence : texts.sentences) {
      const bool contains = source.text.find('"' + sentence) != std::string::npos ||
                            source.text.find(sentence + '"') != std::string::npos;
      CHECK_MESSAGE(!contains, source.path, " contains: ", sentence);
    }
}

TEST_CASE("no source outside core/ops/call_cause.h contains the cause of a call") {
  const Texts texts = display_texts();
  int in_table = 0;
  for (const Source& source : sources())
    for (const std::string& cause : texts.causes) {
      const bool contains = source.text.find('"' + cause + '"') != std::string::npos;
      const bool table = source.path == "core/ops/call_cause.h";
      in_table += contains && table;
      CHECK_MESSAGE(contains == table, source.path, ": ", cause);
    }
  CHECK(in_table == static_cast<int>(texts.causes.size()));
}

TEST_CASE("no source compares a display text") {
  const Texts texts = display_texts();
  CHECK(std::ranges::none_of(texts.names, &std::string::empty));
  const std::string some[] = {"adam-eps", "matches",      "diverged",     "error", "second moment",
                              "backward", "loss scaling", "accumulation", "eps"};
  for (const std::string& name : some) CHECK_MESSAGE(std::ranges::count(texts.names, name) > 0, name);
  for (const Source& source : sources()) {
    if (source.path.ends_with(".js")) continue;  // reads the names in results.json
    for (const std::string& name : texts.names) {
      const std::string line = comparison(source.text, name);
      CHECK_MESSAGE(line.empty(), source.path, ": ", line);
    }
  }
}

namespace {

// The only files of the folders that judge which compare quoted texts, and what gives them these texts. All others
// compare enumerators.
struct Reader {
  std::string_view path, reads;
};
constexpr Reader kReaders[] = {
    {"amp/exchange.cpp", "the name of an exchange, as a user writes it"},
    {"amp/json/", "recipes as JSON"},
    {"amp/quantized_formats.cpp", "the name of a file"},
    {"amp/quantized_recipes.cpp", "the name of a recipe, as a user writes it"},
    {"amp/quantized_run.cpp", "first and last of a recipe's JSON, and the key of a weight in state dicts"},
    {"amp/recipe.cpp", "the name of a recipe"},
    {"amp/recipe_json.cpp", "recipes as JSON"},
    {"dist/data_parallel.cpp", "keys of an optimizer's state dict"},
    {"lab/folder.cpp", "names of files"},
    {"lab/judge_", "ops and keys of a recorded step of PyTorch"},
    {"lab/main/", "the command line"},
    {"lab/models.cpp", "the name of a file"},
    {"lab/result.cpp", "results.json of any version, and the system's description of the processor"},
    {"lab/run.cpp", "the settings in a checkpoint"},
    {"lab/share.cpp", "names of files"},
    {"lab/tasks.cpp", "the name of data, as a user writes it"}};

// The comparisons of a line with a quoted word. Words of ops of PyTorch ("aten.") are a file's.
int compared_words(const std::string& line) {
  static const std::regex form(R"re((==|!=) ?"[^"]*[A-Za-z][^"]*"|"[^"]*[A-Za-z][^"]*" ?(==|!=)|)re"
                               R"re((starts_with|ends_with|find)\("[^"]*[A-Za-z])re");
  static const std::regex comment(R"(^\s*//)");
  if (std::regex_search(line, comment)) return 0;
  return static_cast<int>(std::distance(std::sregex_iterator(line.begin(), line.end(), form), {}));
}

}  // namespace

TEST_CASE("sources that judge compare no quoted text, unless a user or a file gives it") {
  CHECK(compared_words("if (b.find(\"running_\") != b.npos)") == 1);
  CHECK(compared_words("return unit == \"%\" || name != \"loss\";") == 1);
  CHECK(compared_words("// == \"loss\"") == 0);
  std::map<std::string_view, int> used;
  for (const Source& source : sources()) {
    const bool judges = std::ranges::any_of(std::initializer_list<const char*>{"inspect/", "amp/", "dist/", "lab/"},
                                            [&](const char* folder) { return source.path.starts_with(folder); });
    if (!judges || source.path.ends_with(".js")) continue;
    const auto* const reader =
        std::ranges::find_if(kReaders, [&](const Reader& r) { return source.path.starts_with(r.path); });
    std::istringstream lines(source.text);
    for (std::string line; std::getline(lines, line);) {
      const int words = compared_words(line);
      if (reader != std::end(kReaders)) used[reader->path] += words;
      else CHECK_MESSAGE(words == 0, source.path, ": ", line);
    }
  }
  for (const Reader& reader : kReaders) CHECK_MESSAGE(used[reader.path] > 0, reader.path, " compares none any more");
}

TEST_CASE("no text of the report's scripts breaks over a line") {
  int scripts = 0;
  for (const Source& source : sources()) {
    if (!source.path.ends_with(".js")) continue;
    ++scripts;
    CHECK_MESSAGE(broken_text(source.text) == 0, source.path);
  }
  CHECK(scripts == 3);
  CHECK(broken_text("const a = `${b ? `; c` : {\n  d: 1\n}} e`;\nf(`g`);\n") == 0);
  CHECK(broken_text("// one `\nconst a = `b ${\n c ? `;\nreturn d` :\n\"\"}`;") == 3);
}

TEST_CASE("the search for display texts finds them") {
  CHECK(!comparison("if (f.phase == \"forward\") return;", "forward").empty());
  CHECK(!comparison("x.starts_with(\"matches\")", "matches").empty());
  CHECK(comparison("v(\"forward\", f)", "forward").empty());
  CHECK(pieces("not precision: {own}, and fp32 {fp32}") == std::vector<std::string>{"not precision:", "and fp32"});
}

TEST_CASE("a percentage has no space before its sign, on the pages and in the report") {
  const std::regex spaced(R"([0-9}"`] %(?![0-9(]))");
  std::vector<std::string> files = {"README.md", "lab/report.js", "lab/report.html.in"};
  for (const auto& entry : fs::recursive_directory_iterator(source_dir() + "/docs"))
    if (entry.path().extension() == ".md") files.push_back(fs::relative(entry.path(), source_dir()).string());
  CHECK(files.size() > 30);
  for (const std::string& file : files) {
    std::ifstream lines(source_dir() + "/" + file);
    CHECK_MESSAGE(lines, file);
    for (std::string line; std::getline(lines, line);)
      CHECK_MESSAGE(!std::regex_search(line, spaced), file, ": ", line);
  }
}
