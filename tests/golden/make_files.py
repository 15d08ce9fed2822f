#!/usr/bin/env python3
"""Writes files/: small files as NumPy and the safetensors package write them.

    pip install numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0 && ./make_files.py

The other way about: GRADUAL_TEST_WRITE_FILES=FOLDER test_core_files -tc="files for*" writes the same tensors, and
make_files.py --check FOLDER reads and compares them.
"""

import pathlib
import sys

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

HERE = pathlib.Path(__file__).parent / "files"


def tensors():
    """The same numbers in every dtype that both sides have; tests/support/golden_values.h has them too."""
    return {
        "f64": np.array([[1.5, -2.25, 1e300], [5e-324, -0.0, np.pi]], np.float64),
        "f32": np.array([[1.5, -2.25, 1e30], [1e-45, -0.0, np.pi]], np.float32),
        "f16": np.array([1.5, -2.25, 65504, 6e-8], np.float16),
        "bf16": np.array([1.5, -2.25, 3e38], ml_dtypes.bfloat16),
        "f8e4m3fn": np.array([1.5, -2.25, 448], ml_dtypes.float8_e4m3fn),
        "f8e5m2": np.array([1.5, -2.5, 57344], ml_dtypes.float8_e5m2),
        "i64": np.array([-(2**63), 2**63 - 1], np.int64),
        "i32": np.array([-(2**31), 2**31 - 1], np.int32),
        "u8": np.array([[0], [255]], np.uint8),
        "bool": np.array([True, False, True]),
        "empty": np.zeros((2, 0, 3), np.float32),
        "scalar": np.array(0.1, np.float64),
    }


def write():
    HERE.mkdir(exist_ok=True)
    safetensors.numpy.save_file(tensors(), HERE / "all.safetensors", metadata={"made by": "safetensors", "é": "ü"})
    for name in ("f64", "f32", "f16", "i64", "i32", "u8", "bool", "empty", "scalar"):
        np.save(HERE / f"{name}.npy", tensors()[name])
    np.save(HERE / "fortran.npy", np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)))
    np.save(HERE / "big_endian.npy", np.arange(3, dtype=">f4"))
    np.save(HERE / "bf16.npy", tensors()["bf16"])
    np.save(HERE / "structured.npy", np.zeros(2, [("a", "<f4")]))
    with open(HERE / "version2.npy", "wb") as f:
        np.lib.format.write_array(f, np.arange(4, dtype=np.float32), version=(2, 0))


def same(name, a, b):
    ok = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    print(f"{name}: {'the same' if ok else f'DIFFERS: {a!r} {b!r}'}")
    return ok


def check(folder):
    expected = tensors()
    # deserialize and not load_file: NumPy itself has no 8-bit floats
    found = dict(safetensors.deserialize((folder / "all.safetensors").read_bytes()))
    ok = sorted(found) == sorted(expected)
    for name, entry in found.items():
        array = np.frombuffer(entry["data"], expected[name].dtype).reshape(entry["shape"])
        ok &= same(f"safetensors {name} {entry['dtype']}", array, expected[name])
    with safetensors.safe_open(folder / "all.safetensors", "np") as f:
        ok &= f.metadata() == {"made by": "gradual", "é": "ü"}
    for path in sorted(folder.glob("*.npy")):
        ok &= same(path.name, np.load(path), expected[path.stem])
    return ok


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        sys.exit(0 if check(pathlib.Path(sys.argv[2])) else 1)
    write()
