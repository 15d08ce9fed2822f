// Which experts the tokens of a model's mixtures (nn/mixture_of_experts.h) go to, and how many of these choices a
// precision changes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../nn/mixture_of_experts.h"

namespace gradual::inspect {

// The choices of two precisions for the same tokens; a sum over calls.
struct RouteChange {
  std::int64_t tokens = 0;
  std::int64_t changed = 0;  // tokens whose sets of experts differ
  std::int64_t choices = 0;
  std::int64_t moved = 0;  // choices of the first that are none of the second's

  double changed_share() const { return static_cast<double>(changed) / static_cast<double>(tokens); }
  double moved_share() const { return static_cast<double>(moved) / static_cast<double>(choices); }
  RouteChange& operator+=(const RouteChange& other);
};
// Of experts i64 [.., k], on any device. Error for different sizes.
RouteChange compare_routes(const Tensor& first, const Tensor& second);

// The routes of a mixture in one sum.
struct RouteRow {
  std::string path = {};     // of the mixture
  RouteChange changed = {};  // by rounding
};

// Watches the routers of a model while it lives. No bit of the model depends on it.
class RouteObserver : Pinned {
 public:
  // exact: what each router would choose in f64, of the input and the weight that it has here.
  enum class Exact : bool { no, yes };
  explicit RouteObserver(nn::Module& model, Exact exact = Exact::no);
  ~RouteObserver();

  // A mixture, and its calls since clear(), in order: i64 [tokens, k] each.
  struct Layer {
    std::string path = {};
    nn::MixtureOfExperts* mixture = nullptr;
    std::uint64_t hook = 0;
    std::vector<Tensor> chosen = {};
    std::vector<Tensor> exact = {};  // with Exact::yes

    RouteChange changed_by_rounding() const;  // of Exact::yes: chosen against exact
    // The share of all choices that the busiest expert gets; 1 / experts if they are even. NaN without a choice.
    double busiest_share() const;
  };
  const std::vector<Layer>& layers() const { return layers_; }
  // Of Exact::yes: of each mixture that was called.
  std::vector<RouteRow> rows() const;
  void clear();

 private:
  std::vector<Layer> layers_;
};

}  // namespace gradual::inspect
