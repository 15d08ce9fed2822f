"""model.py FILE: fits a cost model to the lines of hosts.sh and prints what it says of 2, 64 and 1024 ranks.

A step of a model with n parameters, b bits a number, at R bit/s and with P ranks:

    t = c(model) + w + 2 (P - 1)/P n b k/R + 2 (P - 2) m + s(exchange) n

c: forward, backward and update of a rank's part of the batch, which stays the same. w: the ranks wait for each other.
Third term: in the gather every rank sends (P - 1)/P of its numbers twice, first as codes and then as sums; k is the
overhead of the protocol. m: the time that a further message costs its sender, LATENCY_MS, which two ranks cannot show.
s: rounding, packing and summing.
"""
import collections
import statistics
import sys

import numpy

NUMBERS = {"mlp": 26122, "mlp_medium": 669706, "cnn": 50378}
BITS = {"exact": 32, "f32/gather": 32, "bf16/gather": 16, "f16/gather": 16, "e4m3fn/gather": 8}
RATES = {"none": float("inf"), "1gbit": 1e6, "100mbit": 1e5}  # bits in a millisecond
LATENCY_MS = 0.02


def wire(model, exchange, rate, ranks):
    return 2 * (ranks - 1) / ranks * NUMBERS[model] * BITS[exchange] / rate


def main(file):
    seen = collections.defaultdict(list)
    with open(file, encoding="utf-8") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) == 5 and fields[3] in BITS and fields[1] in RATES:
                seen[tuple(fields[1:4])].append(float(fields[4]))
    names = [*NUMBERS, "w", "k", *BITS]
    rows = []
    for (rate, model, exchange), times in seen.items():
        row = numpy.zeros(len(names))
        row[names.index(model)] = 1
        row[names.index("w")] = rate != "none"
        row[names.index("k")] = wire(model, exchange, RATES[rate], 2)
        row[names.index(exchange)] = NUMBERS[model]
        rows.append(row / statistics.median(times))  # relative errors count
    rows, values = numpy.array(rows), numpy.zeros(len(names))
    for _ in range(5000):  # least squares by coordinates; no term is negative
        for j, column in enumerate(rows.T):
            values[j] = max(0, values[j] + column @ (1 - rows @ values) / (column @ column))
    errors, terms = rows @ values - 1, dict(zip(names, values))
    print("terms:", {name: float(f"{value:.3g}") for name, value in terms.items()})
    rms = (errors**2).mean() ** 0.5
    print(f"relative error of the fit: {100 * rms:.0f}% (rms), {100 * abs(errors).max():.0f}% at most")
    for model in NUMBERS:
        for exchange in BITS:
            steps = [terms[model] + terms["w"] + terms["k"] * wire(model, exchange, RATES["1gbit"], ranks)
                     + 2 * (ranks - 2) * LATENCY_MS + terms[exchange] * NUMBERS[model] for ranks in (2, 64, 1024)]
            print(f"| {model} | {exchange} | " + " | ".join(f"{t:.1f}" for t in steps) + " |")


main(sys.argv[1])
