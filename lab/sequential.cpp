#include "sequential.h"

#include <algorithm>

namespace gradual::lab {

std::vector<int> looks(int first, int most) {
  std::vector<int> seeds = {first};
  while (seeds.back() < most) seeds.push_back(std::min(most, seeds.back() + (seeds.back() + 1) / 2));
  return seeds;
}

double error_of_a_look(int looks, double error) { return error / std::max(1, looks); }

}  // namespace gradual::lab
