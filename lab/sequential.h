// Looking at results again and again, with more seeds each time, without a larger chance of a wrong answer.
#pragma once

#include <vector>

namespace gradual::lab {

// The numbers of seeds after which a comparison is looked at: `first`, then half as many more each time, up to `most`.
// most below first: one look.
std::vector<int> looks(int first, int most);

// The error that each of so many looks may make, such that all together make at most `error`: an equal part
// (Bonferroni). This holds however the looks depend on each other.
double error_of_a_look(int looks, double error = 0.05);

}  // namespace gradual::lab
