// docs/why.md: its tables of causes and verdicts are made here, from causes.def and verdicts.def.
#include <doctest/doctest.h>
#include <gradual/inspect/cause.h>
#include <gradual/lab/outcome.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "support/source_dir.h"

using namespace gradual;

namespace {

std::string verdict_table() {
  std::string text = "| kind | what it means |\n|---|---|\n";
  for (const lab::VerdictInfo& v : lab::kVerdictInfos)
    if (!v.meaning.empty()) text += "| `" + std::string(v.name) + "` | " + std::string(v.meaning) + " |\n";
  return text;
}

std::string note_table() {
  std::string text = "| note | named if |\n|---|---|\n";
  for (const lab::NoteInfo& n : lab::kNoteInfos)
    text += "| " + std::string(n.name) + " | " + std::string(n.meaning) + " |\n";
  return text;
}

std::string cause_table() {
  constexpr std::string_view kBlame[] = {"", ": *not precision*", ": *not precision*, if fp32 fails too"};
  std::string text = "| cause | evidence | what helps |\n|---|---|---|\n";
  for (const inspect::CauseInfo& c : inspect::kCauseInfos)
    text += "| `" + std::string(c.name) + "` | " + std::string(c.evidence) +
            std::string(kBlame[static_cast<int>(c.blame)]) + " | " + std::string(c.cure) + " |\n";
  return text;
}

}  // namespace

TEST_CASE("docs/why.md agrees with the tables of causes, verdicts and their notes") {
  const std::string path = source_dir() + "/docs/why.md";
  std::ostringstream read;
  read << std::ifstream(path).rdbuf();
  std::string page = read.str();
  const bool writes = std::getenv("GRADUAL_WRITE_DOCS") != nullptr;
  struct Part {
    std::string name;
    std::string fresh;
  };
  for (const Part& part :
       {Part{"verdicts", verdict_table()}, Part{"notes", note_table()}, Part{"causes", cause_table()}}) {
    const std::string begin = "<!-- generated: " + part.name + " -->\n";
    const std::string end = "<!-- end -->\n";
    const std::size_t from = page.find(begin);
    REQUIRE_MESSAGE(from != std::string::npos, "docs/why.md has lost the marks around its part ", part.name);
    const std::size_t first = from + begin.size();
    const std::size_t to = page.find(end, first);
    REQUIRE_MESSAGE(to != std::string::npos, "docs/why.md has lost the marks around its part ", part.name);
    if (writes) page.replace(first, to - first, part.fresh);
    else CHECK_MESSAGE(page.substr(first, to - first) == part.fresh, "stale; run ./dev docs");
  }
  if (writes) std::ofstream(path) << page;
}

TEST_CASE("every cause and every verdict has its texts, and no two the same name") {
  std::set<std::string_view> names;
  for (const inspect::CauseInfo& c : inspect::kCauseInfos) {
    CHECK_MESSAGE(names.insert(c.name).second, c.name);
    for (const std::string_view text : {c.name, c.evidence, c.sentence, c.cure}) CHECK_MESSAGE(!text.empty(), c.name);
  }
  for (const lab::VerdictInfo& v : lab::kVerdictInfos) {
    CHECK_MESSAGE(names.insert(v.name).second, v.name);
    if (v.kind == lab::VerdictKind::unjudged) continue;
    CHECK_MESSAGE(!v.sentences[0].empty(), v.name);
    CHECK_MESSAGE(!v.meaning.empty(), v.name);
    for (const std::string_view sentence : v.sentences)
      CHECK_MESSAGE((sentence.empty() || sentence.starts_with(v.name)), sentence);
  }
}
