#!/usr/bin/env python3
"""Writes conversions.csv: floats and what NumPy (f16) and ml_dtypes (the others) make of them.

    pip install numpy==2.4.6 ml_dtypes==0.6.0 && ./make_conversions.py

Columns, all as hexadecimal bit patterns: the float, then its f16, bf16, f8e4m3fn and f8e5m2 code. The floats are
values, midpoints and their neighbours all over the range of each format, edges of the ranges, and random bits.
"""

import pathlib

import ml_dtypes
import numpy as np

FORMATS = [
    (np.float16, np.uint16, 4),
    (ml_dtypes.bfloat16, np.uint16, 4),
    (ml_dtypes.float8_e4m3fn, np.uint8, 2),
    (ml_dtypes.float8_e5m2, np.uint8, 2),
]


def chosen_floats():
    rng = np.random.default_rng(20240229)
    bits = [np.array([0, 1, 2, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.uint32)]
    for dtype, code_type, digits in FORMATS:
        codes = np.arange(1 << (4 * digits - 1)).astype(code_type)
        if digits == 4:
            codes = np.unique(np.concatenate([codes[:6], codes[0x03FE:0x0403], codes[0x7BFD:0x7C00],
                                              codes[0x007E:0x0083], codes[0x7F7D:0x7F80],
                                              rng.choice(codes, 150)]))
        values = codes.view(dtype).astype(np.float64)
        values = values[np.isfinite(values)]
        # The next value up has the next code; one unit more than the largest is the limit of overflow.
        above = (codes[: len(values)] + code_type(1)).view(dtype).astype(np.float64)
        finite = np.isfinite(above)
        middle = np.where(finite, (values + np.where(finite, above, 0)) / 2, 0)[finite]
        largest = float(ml_dtypes.finfo(dtype).max)
        spacing = largest - float(np.nextafter(dtype(largest), dtype(0)))
        middle = np.append(middle, largest + spacing / 2)
        pattern = np.concatenate([values, middle]).astype(np.float32).view(np.uint32).astype(np.int64)
        for step in (-1, 0, 1):
            bits.append(np.maximum(pattern + step, 0).astype(np.uint32))
    bits.append(rng.integers(0, 0x7F800000, 400, dtype=np.uint32))
    positive = np.unique(np.concatenate(bits))
    # Both signs at the edges; elsewhere every other value is negative, which keeps the file small.
    signs = np.where(np.arange(len(positive)) % 2 == 1, 0x80000000, 0).astype(np.uint32)
    edges = bits[0] | np.uint32(0x80000000)
    return np.concatenate([positive | signs, bits[0], edges]).view(np.float32)


def main():
    floats = np.unique(chosen_floats().view(np.uint32)).view(np.float32)
    columns = [[f"{bits:08x}" for bits in floats.view(np.uint32)]]
    with np.errstate(all="ignore"):
        for dtype, code_type, digits in FORMATS:
            columns.append([f"{code:0{digits}x}" for code in floats.astype(dtype).view(code_type)])
    path = pathlib.Path(__file__).with_name("conversions.csv")
    lines = ["f32,f16,bf16,f8e4m3fn,f8e5m2"] + [",".join(row) for row in zip(*columns)]
    path.write_text("\n".join(lines) + "\n")
    print(f"{path.name}: {len(floats)} rows")


main()
