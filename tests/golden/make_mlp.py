#!/usr/bin/env python3
"""Writes files/mlp.safetensors, a model of PyTorch for docs/from-pytorch.md, and reads it back from Gradual.

    pip install torch safetensors && ./make_mlp.py
    ./make_mlp.py --check back.safetensors    # what the page's program wrote: build/release/tests/back.safetensors
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent / "files"
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])

if sys.argv[1:2] == ["--check"]:
    net.load_state_dict(load_file(sys.argv[2]))
    original = load_file(HERE / "mlp.safetensors")
    for name, value in net.state_dict().items():
        assert value.dtype == original[name].dtype and torch.equal(value, original[name]), name
    print("every tensor is the same")
else:
    for _ in range(20):  # so that the running statistics are not those of a new model
        net(torch.randn(64, 4) * 2 + 1)
    save_file(net.state_dict(), HERE / "mlp.safetensors")
print(net.eval()(x))
