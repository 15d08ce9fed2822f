"""The command line that train.py and speed.py share."""

import argparse
import pathlib

import torch

here = pathlib.Path(__file__).resolve().parent


def options_of(doc, **numbers):
    """--program, --work, and an integer for each of `numbers` with its default. PyTorch is set to one thread."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--program", required=True, help="gradual-import-check")
    parser.add_argument("--work", type=pathlib.Path, default=here.parents[1] / "build" / "import-check")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    return options
