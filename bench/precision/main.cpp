// How good a diagnosis of precision failures is: plants failures, asks lab::compare, and scores what it says.
//
//   gradual-precision-bench [--fresh SEED] [--kinds A,B] [--family NAME] [--kept DIR] [--part I/N] [--table] [--list]
//                           [--write FILE] [--answers FILE]
//
// --answers scores the answers of another tool, from a file, in place of the lab's.
#include <fmt/format.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "answers.h"
#include "diagnosis_score.h"
#include "kinds.h"
#include "score_table.h"

using namespace gradual;
using namespace gradual::precision_bench;

namespace {

namespace fs = std::filesystem;

constexpr int kDraws = 6;  // attempts until an instance counts

struct Arguments {
  std::uint64_t seed = 1;
  std::set<std::string> kinds = {};
  std::string family = {};
  std::string kept = "precision-bench";
  std::string write = {};
  std::string answers = {};  // a file
  int part = 1;
  int parts = 1;
  bool table = false;  // of the kept results, without new ones
  bool list = false;
};

std::set<std::string> names_in(const std::string& list) {
  std::set<std::string> names;
  std::istringstream text(list);
  for (std::string name; std::getline(text, name, ',');) {
    const auto is_it = [&](const Kind& kind) { return kind.name == name; };
    if (std::ranges::none_of(kinds(), is_it)) throw Error("no kind '" + name + "'; --list names them");
    names.insert(name);
  }
  return names;
}

std::uint64_t number_in(const std::string& option, const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || text.size() > 18)
    throw Error(option + " is '" + text + "'; a whole number is expected");
  return std::stoull(text);
}

void set_part(Arguments& a, const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) throw Error("--part is '" + text + "'; I/N is expected, as in 1/2");
  a.part = static_cast<int>(number_in("--part", text.substr(0, slash)));
  a.parts = static_cast<int>(number_in("--part", text.substr(slash + 1)));
  if (a.part < 1 || a.part > a.parts) throw Error("--part is '" + text + "'; I must be 1 to N");
}

Arguments parsed(const std::vector<std::string>& words) {
  Arguments a;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& option = words[i];
    if (option == "--table") {
      a.table = true;
      continue;
    }
    if (option == "--list") {
      a.list = true;
      continue;
    }
    const std::set<std::string> known = {"--fresh", "--kinds", "--family", "--kept", "--part", "--write", "--answers"};
    if (!known.contains(option))
      throw Error("no option '" + option +
                  "'; there are --fresh, --kinds, --family, --kept, --part, --table, --list, --write and --answers");
    if (++i == words.size()) throw Error(option + " needs a value");
    if (option == "--fresh") a.seed = number_in(option, words[i]);
    if (option == "--kinds") a.kinds = names_in(words[i]);
    if (option == "--family") a.family = std::string(to_string(family_from_name(words[i])));
    if (option == "--kept") a.kept = words[i];
    if (option == "--part") set_part(a, words[i]);
    if (option == "--write") a.write = words[i];
    if (option == "--answers") a.answers = words[i];
  }
  return a;
}

struct Place {
  const Kind* kind;
  Family family;
  int number;
};

std::vector<Place> places(const Arguments& a) {
  std::vector<Place> all;
  for (const Kind& kind : kinds())
    for (const Family family : kind.families)
      for (int number = 0; number < kind.each; ++number)
        if ((a.kinds.empty() || a.kinds.contains(kind.name)) && (a.family.empty() || a.family == to_string(family)))
          all.push_back({&kind, family, number});
  return all;
}

Score run(const Place& place, std::uint64_t seed) {
  const std::clock_t start = std::clock();
  std::vector<std::string> rejected;
  Score score;
  for (int attempt = 0; attempt < kDraws && !score.counts; ++attempt) {
    const Instance instance = draw_instance(*place.kind, place.family, place.number, seed, attempt);
    const Instance twin = base_instance(*place.kind, place.family, place.number, seed, attempt);
    try {
      const Check checked = check(instance, twin);
      if (checked.counts) {
        score = diagnose(instance);
        break;
      }
      rejected.push_back(checked.why);
    } catch (const Error& error) { rejected.emplace_back(error.what()); }
    score = {.id = instance.id(), .kind = instance.kind, .family = std::string(to_string(place.family))};
    score.group = instance.group;
    score.seed = instance.seed;
    score.description = describe(instance);
  }
  score.rejected = rejected;
  score.seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  return score;
}

std::string file_prefix(const Arguments& a) { return fmt::format("scores-{}-", a.seed); }

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error("cannot read '" + path + "'");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// All kept results of this seed by id, of all parts. A line that was cut off is left out.
std::map<std::string, Score> kept_in(const Arguments& a) {
  std::map<std::string, Score> all;
  if (!fs::exists(a.kept)) return all;
  for (const auto& entry : fs::directory_iterator(a.kept)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(file_prefix(a)) || !name.ends_with(".jsonl")) continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      const std::optional<Score> score = score_from_json(line);
      if (score) all[score->id] = *score;
    }
  }
  return all;
}

void show(const Score& s) {
  const char* const marks = s.group == Group::healthy ? "" : s.cause_first ? " cause" : " -";
  fmt::print("{}: {}{}{}{} | {} at {} | {} | cost {:.2f}, {:.1f} s, {} rejected{}\n", s.id,
             s.counts ? s.verdict : "does not count", marks, s.site_right ? " site" : "",
             s.specific && s.cure_works ? " cure" : (s.cure_works ? " generic-cure" : ""), s.cause, s.site, s.cure,
             s.cost, s.seconds, s.rejected.size(), s.rejected.empty() ? "" : " (" + s.rejected.back() + ")");
  std::fflush(stdout);
}

std::string id_of(const Place& place, std::uint64_t seed) {
  return draw_instance(*place.kind, place.family, place.number, seed, 0).id();
}

// The draw that counts where it is known from kept results, else the first one.
int draw_of(const Place& place, const Arguments& a, const std::map<std::string, Score>& kept) {
  const auto at = kept.find(id_of(place, a.seed));
  return at != kept.end() && at->second.counts ? static_cast<int>(at->second.rejected.size()) : 0;
}

void list(const Arguments& a) {
  const std::map<std::string, Score> kept = kept_in(a);
  for (const Place& place : places(a)) {
    const int draw = draw_of(place, a, kept);
    fmt::print("{}\n", describe(draw_instance(*place.kind, place.family, place.number, a.seed, draw)));
  }
}

// The instances that --list prints. Those that kept results do not know are checked, and left out if they do not
// count.
std::vector<Score> scores_of_answers(const Arguments& a) {
  const std::map<std::string, Score> kept = kept_in(a);
  Answers answers = answers_from_json(read_text(a.answers));
  std::vector<Score> scores;
  for (const Place& place : places(a)) {
    const auto given = answers.find(id_of(place, a.seed));
    if (given == answers.end()) continue;
    const int draw = draw_of(place, a, kept);
    const Instance instance = draw_instance(*place.kind, place.family, place.number, a.seed, draw);
    const Instance twin = base_instance(*place.kind, place.family, place.number, a.seed, draw);
    const auto known = kept.find(instance.id());
    if (known != kept.end() ? known->second.counts : check(instance, twin).counts)
      scores.push_back(score_of(instance, given->second));
    else fmt::print(stderr, "{} does not count\n", instance.id());
    answers.erase(given);
  }
  if (!answers.empty())
    throw Error("no instance '" + answers.begin()->first + "' among those chosen; --list names them");
  return scores;
}

void run_all(const Arguments& a) {
  fs::create_directories(a.kept);
  const std::map<std::string, Score> before = kept_in(a);
  const fs::path path = fs::path(a.kept) / fmt::format("{}{}-of-{}.jsonl", file_prefix(a), a.part, a.parts);
  const bool begun = fs::exists(path) && fs::file_size(path) > 0;
  std::ofstream file(path, std::ios::app);
  if (!file) throw Error("cannot write into '" + a.kept + "'");
  if (begun) file << "\n";  // an earlier run may have ended within a line
  const std::vector<Place> all = places(a);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (static_cast<int>(i % static_cast<std::size_t>(a.parts)) != a.part - 1) continue;
    const Instance first = draw_instance(*all[i].kind, all[i].family, all[i].number, a.seed, 0);
    if (before.contains(first.id())) continue;
    const Score score = run(all[i], a.seed);
    file << to_json(score) << "\n" << std::flush;
    show(score);
  }
}

void print(const Arguments& a, const std::vector<Score>& scores) {
  const std::string text = table_of(scores);
  fmt::print("{}", text);
  if (!a.write.empty()) write_file_atomically(a.write, text);
}

void print_table(const Arguments& a) {
  const std::map<std::string, Score> kept = kept_in(a);
  std::vector<Score> scores;
  for (const Place& place : places(a)) {
    const auto at = kept.find(draw_instance(*place.kind, place.family, place.number, a.seed, 0).id());
    if (at != kept.end()) scores.push_back(at->second);
  }
  print(a, scores);
}

}  // namespace

int main(int argc, char** argv) try {
  const Arguments a = parsed({argv + 1, argv + argc});
  set_num_threads(1);
  if (a.list) {
    list(a);
    return 0;
  }
  if (!a.answers.empty()) {
    print(a, scores_of_answers(a));
    return 0;
  }
  if (!a.table) run_all(a);
  if (a.table || a.parts == 1) print_table(a);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "gradual-precision-bench: {}\n", error.what());
  return 2;
}
