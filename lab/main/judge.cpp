// gradual-lab judge: is a difference between two recorded steps rounding, or a bug?
#include <fmt/format.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/files/safetensors.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/message_text.h>
#include <gradual/core/support/throwf.h>
#include <gradual/inspect/csv_text.h>
#include <gradual/lab/judge.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "option_parser.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

// A record and what was found in it.
struct JudgedRecord {
  std::string file;
  StateDict tensors;
  Judgement judgement;
};

std::string percent(double x) { return fmt::format("{:.2g}", x); }

const char* what(const Judged& j) {
  switch (j.kind) {
    case JudgedKind::value: return "forward";
    case JudgedKind::gradient: return "gradient";
    case JudgedKind::parameter_gradient: return "gradient of a parameter";
    case JudgedKind::buffer: return "buffer";
  }
  return "";
}

std::string with_line(const Judged& j) { return j.line.empty() ? j.op : fmt::format("{} ({})", j.op, j.line); }

void say_verdict(const JudgedRecord& r) {
  const std::vector<Judged>& all = r.judgement.tensors;
  const auto explained = std::ranges::count_if(all, &Judged::explained);
  const Judged* const wrong = r.judgement.first();
  if (!wrong) {
    say(stdout, "{}: rounding explains all {} tensors\n", r.file, all.size());
  } else {
    say(stdout, "{}: rounding explains {} of {} tensors. The first that it does not:\n", r.file, explained, all.size());
    say(stdout, "  {} ({}, {})\n  {}\n", wrong->name, what(*wrong), to_string(wrong->dtype), with_line(*wrong));
    if (!wrong->between.empty())
      say(stdout, "  or one of the {} ops since the records before:\n", wrong->between.size());
    for (const std::string& other : wrong->between) say(stdout, "    {}\n", other);
    say(stdout, "  it differs from f64 by {} of its norm; rounding explains {} (an element by {:.3g} times too much)\n",
        percent(wrong->difference), percent(wrong->allowed), wrong->worst);
    if (wrong->sampled >= 0)
      say(stdout, "  other orders of its sums, of which some were tried, differ by {} at most\n",
          percent(wrong->sampled));
  }
  const auto unusual = std::ranges::count_if(all, &Judged::unusual);
  if (unusual > 0)
    say(stdout, "  {} of the explained {} much farther away than sampled orders of the sums; the first is {}\n",
        unusual, unusual == 1 ? "is" : "are", std::ranges::find_if(all, &Judged::unusual)->name);
  if (!r.judgement.not_judged.empty())
    say(stdout, "  {} tensors are not judged (random, or not in the graph): {}{}\n", r.judgement.not_judged.size(),
        r.judgement.not_judged.front(), r.judgement.not_judged.size() > 1 ? ", .." : "");
}

// ||a - b|| / ||a||; none if they cannot be compared.
std::optional<double> difference(const StateDict& a, const StateDict& b, const std::string& name) {
  const Tensor* const x = a.contains(name) ? std::get_if<Tensor>(&a.at(name)) : nullptr;
  const Tensor* const y = b.contains(name) ? std::get_if<Tensor>(&b.at(name)) : nullptr;
  if (!x || !y || x->sizes() != y->sizes() || x->numel() == 0) return std::nullopt;
  const Tensor wide = cast(*x, DType::f64);
  const double size = norm(wide).item();
  const double away = norm(sub(wide, cast(*y, DType::f64))).item();
  return away == 0 ? 0 : away / size;
}

// What went in must be the same in both.
void say_inputs(const JudgedRecord& a, const JudgedRecord& b) {
  for (const auto& entry : a.tensors) {
    const bool input =
        (entry.name.starts_with("in.") && entry.name.ends_with(":")) || entry.name.starts_with("before:");
    if (!input) continue;
    const std::optional<double> away = difference(a.tensors, b.tensors, entry.name);
    if (away && *away > 0)
      say(stdout, "the two steps begin differently: {} differs by {} of its norm\n", entry.name, percent(*away));
  }
}

constexpr const char* kExplained = "explained";
using Rows = std::vector<std::vector<std::string>>;

// A line for each tensor that both have.
Rows rows_of(const JudgedRecord& a, const JudgedRecord& b) {
  std::map<std::string, const Judged*> of_b;
  for (const Judged& j : b.judgement.tensors) of_b.emplace(j.name, &j);
  Rows rows{{"tensor", "dtypes", "A - B", "explained", "verdict"}};
  for (const Judged& j : a.judgement.tensors) {
    const auto other = of_b.find(j.name);
    if (other == of_b.end()) continue;
    const Judged& k = *other->second;
    const std::optional<double> away = difference(a.tensors, b.tensors, j.name);
    const std::string verdict = !j.explained() ? (k.explained() ? "A is wrong" : "both are wrong")
                                               : (k.explained() ? kExplained : "B is wrong");
    rows.push_back({j.name, fmt::format("{}, {}", to_string(j.dtype), to_string(k.dtype)), away ? percent(*away) : "",
                    percent(j.allowed + k.allowed), verdict});
  }
  return rows;
}

std::string csv_of(const std::vector<JudgedRecord>& records) {
  std::string csv = "record,tensor,kind,dtype,op,line,others,difference,allowed,sampled,worst,explained\n";
  for (const JudgedRecord& r : records)
    for (const Judged& j : r.judgement.tensors)
      csv += fmt::format("{},{},{},{},{},{},{},{:.6g},{:.6g},{},{:.6g},{}\n", inspect::csv_field(r.file),
                         inspect::csv_field(j.name), what(j), to_string(j.dtype), inspect::csv_field(j.op),
                         inspect::csv_field(j.line), inspect::csv_field(fmt::format("{}", fmt::join(j.between, "; "))),
                         j.difference, j.allowed, j.sampled < 0 ? std::string() : fmt::format("{:.6g}", j.sampled),
                         j.worst, j.explained() ? "yes" : "no");
  return csv;
}

struct JudgeArguments {
  std::vector<std::string> files;
  std::string csv, record, dtype;
  std::string record_dtype, backend;
  bool all = false;
};

CpuBackend backend_of(const std::string& name) {
  constexpr CpuBackend kAll[] = {CpuBackend::eigen, CpuBackend::fast, CpuBackend::onednn};
  const auto* const found = std::ranges::find(kAll, name, [](CpuBackend b) { return to_string(b); });
  if (found == std::end(kAll)) throwf("--record-backend {}: there are eigen, fast and onednn", name);
  return *found;
}

// How --record computes the step.
struct OwnRecord {
  DType dtype = DType::f32;
  CpuBackend backend = cpu_backend();
};

OwnRecord own_record(const JudgeArguments& a) {
  if (a.record.empty() && !a.record_dtype.empty()) throw_error("--record-dtype is given, but not --record");
  if (a.record.empty() && !a.backend.empty()) throw_error("--record-backend is given, but not --record");
  OwnRecord own;
  if (!a.record_dtype.empty()) own.dtype = dtype_from_name(a.record_dtype);
  if (!a.backend.empty()) own.backend = backend_of(a.backend);
  return own;
}

void write_own_record(const std::string& path, const OwnRecord& own, const pt2::Program& program,
                      const StateDict& given) {
  const CpuBackendScope backend(own.backend);
  save_safetensors(path, record_step(program, given, own.dtype));
}

}  // namespace

int judge_command(int argc, char** argv) {
  JudgeArguments a;
  OptionParser app(
      "Judges recorded steps of a model that torch.export.save wrote: whether rounding explains each tensor, and if\n"
      "not, which op is the first. docs/judge.md has the Python that records a step. The exit status is 1 if there is\n"
      "one that rounding does not explain.\n",
      "judge");
  app.add_option("files", a.files, "a .pt2 file, and one or two records (.safetensors)").expected(2, 3).required();
  app.add_option("--dtype", a.dtype, "of tensors that are not recorded (default: the coarsest of the recorded ones)");
  app.add_option("--record", a.record, "write the first record's step, as Gradual computes it, to this file");
  app.add_option("--record-dtype", a.record_dtype,
                 "of --record: f32 (default), f64, or f16 or bf16 for autocast to it");
  app.add_option("--record-backend", a.backend, "what computes products of --record: eigen, fast or onednn");
  app.add_option("--csv", a.csv, "write a line for each tensor to this file");
  app.add_flag("--all", a.all, "print all tensors, not only the wrong ones and the first");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  JudgeOptions options;
  if (!a.dtype.empty()) options.dtype = dtype_from_name(a.dtype);
  const OwnRecord own = own_record(a);
  const pt2::Program program = pt2::read_program(a.files[0]);
  std::vector<JudgedRecord> records;
  for (std::size_t i = 1; i < a.files.size(); ++i) {
    StateDict tensors = load_safetensors(a.files[i]).tensors;
    Judgement judgement = in_context(a.files[i], [&] { return judge(program, tensors, options); });
    records.push_back({a.files[i], std::move(tensors), std::move(judgement)});
  }
  if (!a.record.empty()) write_own_record(a.record, own, program, records[0].tensors);
  for (const JudgedRecord& r : records) say_verdict(r);
  if (records.size() == 2) {
    say_inputs(records[0], records[1]);
    Rows rows = rows_of(records[0], records[1]);
    std::stable_partition(rows.begin() + 1, rows.end(), [](const auto& row) { return row.back() != kExplained; });
    constexpr std::size_t kShown = 24;
    const std::size_t hidden = !a.all && rows.size() > kShown + 1 ? rows.size() - kShown - 1 : 0;
    rows.resize(rows.size() - hidden);
    say(stdout, "\n{}", table_of(rows, 2));
    if (hidden > 0) say(stdout, "{} more; --all prints them\n", hidden);
  }
  if (!a.csv.empty()) write_file_atomically(a.csv, csv_of(records));
  return std::ranges::any_of(records, [](const JudgedRecord& r) { return r.judgement.first() != nullptr; }) ? 1 : 0;
}

}  // namespace gradual::lab
