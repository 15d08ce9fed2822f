// gradual-lab probe: how this machine adds up products.
#include <gradual/lab/products.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "command_line.h"
#include "commands.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

constexpr const char* kRow = "{:<52} {:>4}  {:<12}  {:<11}  {:<24}  {:<12}  {}\n";
constexpr const char* kLegend =
    "\nThe line below a way is the order of its sum: products by their number, parentheses from the left to the "
    "right,\n"
    "& for what is added at once, .. for repeats. subnormal: operands, products, sums. tree: random dot products "
    "whose\n"
    "bits the tree and its rounding give. documented: claims that hold, of those that were seen, and their source.\n";

std::string text_of(const Product& product, const std::vector<Fact>& facts, const std::vector<CheckedFact>& checked) {
  const auto of = [&](std::string_view what) {
    const auto found = std::ranges::find(facts, what, &Fact::what);
    return found == facts.end() ? std::string() : found->text;
  };
  const std::string kinds[] = {of("subnormal operands"), of("subnormal products"), of("subnormal sums")};
  const bool alike = kinds[0] == kinds[1] && kinds[1] == kinds[2];
  const auto held = std::ranges::count(checked, true, &CheckedFact::agrees);
  std::string text = fmt::format(
      kRow, product.name, of("bits"), of("rounding"), of("products"),
      alike ? kinds[0] : fmt::format("{}, {}, {}", kinds[0], kinds[1], kinds[2]), of("same bits as the tree"),
      product.claim.source.empty() ? "" : fmt::format("{} of {}, {}", held, checked.size(), product.claim.source));
  text += fmt::format("    {}\n", of("order"));
  for (const char* what :
       {"bits of an addend", "rounding of an addend", "bits of outer sums", "rounding of outer sums"})
    if (!of(what).empty()) text += fmt::format("    {}: {}\n", what, of(what));
  for (const CheckedFact& c : checked)
    if (!c.agrees) text += fmt::format("    {}: documented is {}, found is {}\n", c.what, c.claimed, c.found);
  return text;
}

nlohmann::ordered_json json_of(const Product& product, const std::vector<Fact>& facts,
                               const std::vector<CheckedFact>& checked) {
  nlohmann::ordered_json json{{"way", product.name}, {"terms", product.options.terms}};
  for (const Fact& f : facts) {
    std::string key = f.what;
    std::ranges::replace(key, ' ', '_');
    const bool number = f.text.find_first_not_of("0123456789") == std::string::npos;
    if (number) json["found"][key] = std::stoi(f.text);
    else json["found"][key] = f.text;
  }
  json["documented"] = {{"source", product.claim.source}, {"claims", nlohmann::ordered_json::array()}};
  for (const CheckedFact& c : checked)
    json["documented"]["claims"].push_back(
        {{"what", c.what}, {"claimed", c.claimed}, {"found", c.found}, {"agrees", c.agrees}});
  return json;
}

}  // namespace

int probe_command(int argc, char** argv) {
  int terms = 256;
  std::string only, accumulator;
  bool json = false;
  bool wide = false;
  OptionParser app(
      "Finds by experiments how this machine adds up the products of a matrix multiplication, in each of its ways: "
      "the\n"
      "order, the bits and the rounding of sums, and what becomes of subnormal numbers; and compares with what is\n"
      "documented.\n",
      "probe");
  app.add_option("--k", terms, "products of a sum, 4 to 4096").capture_default_str();
  app.add_option("--only", only, "only the ways whose name has this text, such as bf16 or emulated");
  app.add_option("--accumulator", accumulator, "instead, an emulated accumulator, such as e5m7:up/chunk=32");
  app.add_flag("--json", json, "print JSON");
  app.add_flag("--wide", wide, kWideHelp);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  std::vector<Product> products;
  if (accumulator.empty()) products = products_of_this_machine(terms);
  else products.push_back(emulated_product(accumulator, terms));
  std::erase_if(products, [&](const Product& p) { return p.name.find(only) == std::string::npos; });
  if (products.empty())
    throw_error("--only is '" + only + "', which no way has in its name; without it all are listed");
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  std::string text = fmt::format(kRow, "way", "bits", "rounding", "products", "subnormal", "tree", "documented");
  for (const Product& product : products) {
    const inspect::ProbeResult found = inspect::probe(product.dot, product.options);
    const std::vector<Fact> facts = facts_of(found);
    const std::vector<CheckedFact> checked = check_claim(product.claim, found);
    if (json) {
      all.push_back(json_of(product, facts, checked));
      all.back()["points"] = points_of(found.tree);
    } else text += text_of(product, facts, checked);
  }
  if (json) say(stdout, "{}\n", all.dump(2));
  else say_text(text + kLegend, wide);
  return 0;
}

}  // namespace gradual::lab
