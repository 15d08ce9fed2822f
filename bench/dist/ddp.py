"""ddp.py MODEL HOOK STEPS RANK ADDRESS: what gradual-dist-step measures, by PyTorch's DistributedDataParallel, gloo.

HOOK: none or fp16 (bf16's hook needs NCCL). Two ranks; ADDRESS is rank 0's.
"""
import sys
import time

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

MODELS = {
    "mlp": (32, (64,), lambda: nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))),
    "mlp_medium": (128, (784,), lambda: nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))),
    "cnn": (64, (1, 28, 28), lambda: nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * 49, 10))),
}


def main(name, hook, steps, rank, address):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    distributed.init_process_group("gloo", init_method=f"tcp://{address}:29511", rank=int(rank), world_size=2)
    batch, sizes, make = MODELS[name]
    model = nn.parallel.DistributedDataParallel(make())
    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(batch // 2, *sizes), torch.zeros(batch // 2, dtype=torch.long)
    loss, times = nn.CrossEntropyLoss(), []
    for _ in range(int(steps)):
        distributed.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - start))
    if rank == "0":
        print(f"{name} ddp-{hook} {sorted(times)[len(times) // 2]:.3f}")


main(*sys.argv[1:])
