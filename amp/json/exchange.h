// An exchange as JSON.
#pragma once

#include "../exchange.h"
#include "quantization.h"

namespace gradual::amp {

template <> struct Fields<Exchange> {
  template <class F> static void of(Exchange& e, F field) {
    field("quantizer", e.quantizer);
    field("sign", e.sign);
    field("algorithm", e.algorithm);
    field("average", e.average);
    field("error_feedback", e.error_feedback);
    field("round_result", e.round_result);
  }
};
// A text is a name: "bf16/ring".
template <> struct InFile<std::optional<Exchange>> {
  static void read(const JsonReader& r, const char* key, const Json& from, std::optional<Exchange>& value) {
    if (from == "none") return value.reset();
    if (from.is_string()) {
      value = in_context(r.where, [&] { return exchange_from_name(from.get<std::string>()); });
      return;
    }
    if (!from.is_object())
      r.bad(key,
            "\"none\", a name such as \"bf16/ring\", or an object such as {\"quantizer\": {\"format\": \"bf16\"}}");
    if (!value) value.emplace();
    r.within(key).read_fields(*value);
  }
  static Json of(const std::optional<Exchange>& value) { return value ? json_of_fields(*value) : Json("none"); }
};

}  // namespace gradual::amp
