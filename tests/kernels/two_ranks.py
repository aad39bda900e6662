"""Two ranks that share a device, each with half of the sequences; see test_whole_model.py."""

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bertie.cli import leave
from tests.kernels.test_whole_model import (
    backward,
    errors_of_gradients,
    make_model,
    make_packed,
)


def main():
    device = torch.device(sys.argv[1])
    dist.init_process_group("gloo")  # NCCL wants a device for each rank
    rank, sequences = dist.get_rank(), make_packed(0, 4)
    alone = make_model(device)
    backward(alone, sequences, device)
    model = make_model(device)
    spread = DistributedDataParallel(model)
    backward(spread, make_packed(2 * rank, 2 * rank + 2), device)
    # DDP has divided the sum by the number of ranks.
    errors = errors_of_gradients(model, alone, scale=2)
    if rank == 0:
        print(json.dumps(errors))
    dist.destroy_process_group()
    leave()  # gloo's threads may abort a rank in the usual end


if __name__ == "__main__":
    main()
