// Student's t and Fisher's F distribution, by Eigen's incomplete beta function.
#pragma once

namespace gradual::lab {

// The probability that T is above t; degrees is positive, and need not be whole.
double student_tail(double t, double degrees);
// The t that T exceeds with probability `tail`, which is in (0, 1/2].
double student_quantile(double tail, double degrees);
// The probability that F, a ratio of mean squares of so many degrees, is above f. NaN without degrees.
double fisher_tail(double f, double above, double below);

}  // namespace gradual::lab
