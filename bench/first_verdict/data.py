"""Writes the project's digits as x.npy (f32 [1797, 1, 8, 8]) and y.npy (i64 [1797]) into the current folder.

It needs Python alone, so that `./dev first-verdict` shows what the export needs besides.
"""

import array
import gzip
import pathlib
import struct

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "data" / "digits.csv.gz"


def save(path, shape, kind, values):
    """The npy format 1.0: magic, version, length of the header, header, numbers."""
    header = str({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + values.tobytes())


def main():
    rows = [[int(field) for field in line.split(",")] for line in gzip.open(DIGITS, "rt")]
    pixels = array.array("f", ((p / 16 - 0.3053) / 0.3760 for row in rows for p in row[:-1]))
    save(pathlib.Path("x.npy"), (len(rows), 1, 8, 8), "<f4", pixels)
    save(pathlib.Path("y.npy"), (len(rows),), "<i8", array.array("q", (row[-1] for row in rows)))


if __name__ == "__main__":
    main()
