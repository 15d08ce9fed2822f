#!/usr/bin/env python3
"""Writes formats.csv: what other implementations say of formats, their values and their rounding.

    pip install numpy==2.4.6 gfloat==0.5.2 softposit==0.3.4.4 bitsandbytes==0.50.2 && ./make_formats.py

A line `values,FORMAT,V0 V1 ..` has the value of each code in order, as the shortest decimal number of a double. A line
`round,FORMAT,X:CODE ..` has doubles and the codes that they round to, to nearest. Sources: gfloat (IEEE P3109, OCP
INT8), softposit (posits; es=2 by its functions for any width), bitsandbytes (NF4, AF4). Takums and HiFloat8 have no
package; here their values follow from the definition in the papers, read off the text of the bits.
"""

import math
import pathlib
import re

import numpy as np
import softposit
from gfloat import decode_float
from gfloat.formats import format_info_ocp_int8, format_info_p3109
from gfloat.types import Domain

HERE = pathlib.Path(__file__)


def show(value):
    return repr(float(value)).removesuffix(".0")


def p3109():
    for p in range(1, 8):
        for suffix, domain in (("", Domain.Extended), ("f", Domain.Finite)):
            info = format_info_p3109(8, p, domain=domain)
            yield f"binary8p{p}{suffix}", [decode_float(info, c).fval for c in range(256)]


def posits():
    """Conversions: with two exponent bits (the standard of 2022), and with those of 2017."""
    rng = np.random.default_rng(20220302)
    for name, bits, es in (("posit8es0", 8, 0), ("posit16es1", 16, 1), ("posit8", 8, 2), ("posit16", 16, 2)):
        if es == 2:
            make = lambda v, bits=bits: softposit.convertDoubleToPX2(v, bits)
            code = lambda p, bits=bits: p.v >> (32 - bits)
        else:
            make = softposit.convertDoubleToP8 if bits == 8 else softposit.convertDoubleToP16
            code = lambda p: p.v
        reach = {0: 6, 1: 28, 2: 24 if bits == 8 else 56}[es]
        chosen = np.concatenate([np.exp2(rng.uniform(-reach - 3, reach + 3, 250)) * rng.choice([-1, 1], 250),
                                 rng.normal(size=100), np.exp2(np.arange(-reach - 2, reach + 3)), [0.0]])
        chosen = chosen.astype(np.float32).astype(np.float64)
        yield name, [(v, code(make(v))) for v in chosen]


def takum(code, bits):
    """The value of a linear takum (Hunhold 2024), read off the text of its bits."""
    text = format(code, f"0{bits}b") + "0" * 12
    if int(text[1:], 2) == 0:
        return math.nan if text[0] == "1" else 0.0
    sign = int(text[0])
    regime = int(text[2:5], 2)
    r = regime if text[1] == "1" else 7 - regime
    tail = int("0" + text[5 : 5 + r], 2)
    c = 2**r - 1 + tail if text[1] == "1" else -(2 ** (r + 1)) + 1 + tail
    fraction = text[5 + r :]
    f = int("0" + fraction, 2) / 2 ** len(fraction)
    exponent = c if sign == 0 else -(c + 1)
    return ((1 - 3 * sign) + f) * 2.0**exponent


def hif8(code):
    """The value of a HiFloat8 code (Luo et al. 2024, table of the dot field)."""
    text = format(code, "08b")
    sign = -1.0 if text[0] == "1" else 1.0
    if code == 0x80:
        return math.nan
    if text[1:] == "1101111":
        return sign * math.inf
    for prefix, d in (("11", 4), ("10", 3), ("01", 2), ("001", 1), ("0001", 0)):
        if text[1:].startswith(prefix):
            rest = text[1 + len(prefix) :]
            exponent = 0
            if d > 0:
                exponent = int("1" + rest[1:d], 2) * (-1 if rest[0] == "1" else 1)
            mantissa = rest[d:]
            return sign * (1 + int(mantissa, 2) / 2 ** len(mantissa)) * 2.0**exponent
    m = int(text[5:], 2)
    return sign * 2.0 ** (m - 23) if m else 0.0


def tables_of_bitsandbytes():
    """Read from the source: its functions need PyTorch."""
    import importlib.util

    source = pathlib.Path(importlib.util.find_spec("bitsandbytes").origin).with_name("functional.py").read_text()
    for name in ("nf4", "af4"):
        body = source[source.index(f'typename == "{name}"') :]
        numbers = re.search(r"data = \[(.*?)\]", body, re.S).group(1)
        yield name, sorted(float(np.float32(v)) for v in numbers.split(",") if v.strip())


def main():
    lines = []
    values = list(p3109()) + list(tables_of_bitsandbytes())
    values += [("takum8", [takum(c, 8) for c in range(256)]), ("hif8", [hif8(c) for c in range(256)])]
    values += [("mxint8-twos-complement", [decode_float(format_info_ocp_int8, c).fval for c in range(256)])]
    for name, all_values in values:
        lines.append(f"values,{name}," + " ".join(show(v) for v in all_values))
    rng = np.random.default_rng(7)
    codes = rng.choice(65536, 600, replace=False)
    lines.append("codes,takum16," + " ".join(f"{c}:{show(takum(c, 16))}" for c in codes))
    for name, pairs in posits():
        lines.append(f"round,{name}," + " ".join(f"{show(v)}:{c}" for v, c in pairs))
    HERE.with_name("formats.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
