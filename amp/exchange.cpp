#include "exchange.h"

#include <sstream>
#include <utility>

#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "recipe.h"

namespace gradual::amp {
namespace {

Quantizer quantizer_from(const std::string& word) {
  for (const char* blocks : {"mxfp8", "mxfp6", "mxfp4", "nvfp4"})
    if (word == blocks) return *recipe(word).quantization->forward_x;
  const Format f = format(word);
  if (f.bits() > 8) return {.format = f, .overflow = Overflow::ieee};
  return {.format = f, .scaling = TensorScale{}};
}

}  // namespace

void check_valid(const Exchange& e) {
  if (e.sign && e.quantizer) throw_error("exchange: sign and a quantizer exclude each other");
  if (!e.quantizer) {
    if (e.error_feedback && !e.sign)
      throw_error("exchange: error_feedback is for a quantizer or sign; f32 loses nothing to feed back");
    return;
  }
  const Quantizer& q = *e.quantizer;
  in_context("exchange, quantizer", [&] { check_valid(q); });
  // Random scales of ms-eden are right on average for numbers that were turned, and gradients are not.
  if (is_any<DelayedScale, LearnedScale, RowScale, RowRange, EdenBlocks>(q.scaling))
    throwf("exchange: a scaling of kind {} is not exchanged; allowed are none, fixed, tensor, block, nvfp4",
           kind_name(q.scaling));
  if (has_tiles(q.scaling))
    throw_error("exchange: square blocks need a matrix; gradients are exchanged as rows of numbers");
  if (q.hadamard || q.center || has_zero_points(q.scaling))
    throw_error("exchange: hadamard, center and zero points belong to products");
  if (q.gradient != QuantizerGradient::straight)
    throwf("exchange: the gradient is {}; it belongs to a product", to_string(q.gradient));
  if (!q.format.is_signed) throw_error("exchange: gradients have signs, which the format lacks");
}

Exchange exchange_from_name(std::string_view text) {
  Exchange e;
  std::istringstream words{std::string(text)};
  std::string word;
  std::getline(words, word, '/');
  if (word == "sign") e.sign = true;
  else if (word != "f32" && word != "fp32")
    e.quantizer = in_context("exchange '" + std::string(text) + "'", [&] { return quantizer_from(word); });
  const std::vector<std::string> all = {"ring", "tree", "gather", "stochastic", "feedback", "after", "f32-result"};
  while (std::getline(words, word, '/')) {
    if (word == "ring") e.algorithm = ExchangeAlgorithm::ring;
    else if (word == "tree") e.algorithm = ExchangeAlgorithm::tree;
    else if (word == "gather") e.algorithm = ExchangeAlgorithm::gather;
    else if (word == "stochastic" && e.quantizer) e.quantizer->rounding.mode = RoundingMode::stochastic;
    else if (word == "feedback") e.error_feedback = true;
    else if (word == "after") e.average = Averaging::after;
    else if (word == "f32-result") e.round_result = false;
    else
      throwf("exchange '{}': '{}' is not allowed there; what may follow the format is {}{}", text, word, join(all),
             did_you_mean(word, all));
  }
  check_valid(e);
  return e;
}

std::string describe(const Exchange& e) {
  std::string text = e.sign ? "sign" : e.quantizer ? describe(*e.quantizer) : "f32";
  text += fmt::format("; {}, averaged {}", to_string(e.algorithm), to_string(e.average));
  if (e.error_feedback) text += ", error feedback";
  if (!e.round_result) text += ", the sum in f32";
  return text;
}

}  // namespace gradual::amp
