"""One process or many: who this one is, what all add up, and how the model lies over them.

torchrun starts the processes and says, in the environment, who each is.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bertie.errors import UserError
from bertie.model.bert import Bert

Device = Literal["auto", "cpu", "cuda"]
Sharding = Literal["none", "full"]
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All processes of a run, and which of them this one is."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Sequence[float | Tensor]) -> list[float]:
        """Each value summed over the ranks, as the same numbers everywhere."""
        return self.start_sum([], [torch.as_tensor(v, device=self.device) for v in values])()

    def start_sum(
        self, numbers: Sequence[float], tensors: Sequence[Tensor]
    ) -> Callable[[], list[float]]:
        """As `sum`, begun now; to call what is returned waits for it, and for no later work."""
        told = torch.tensor(numbers, dtype=torch.float64)
        if self.device.type == "cuda":  # a copy from or to other memory would wait for the GPU
            told = told.pin_memory().to(self.device, non_blocking=True)
        stacked = torch.cat([told, torch.stack([tensor.double() for tensor in tensors])])
        if self.size > 1:
            dist.all_reduce(stacked)
        if self.device.type != "cuda":
            return stacked.tolist
        found = torch.empty(stacked.shape, dtype=torch.float64, pin_memory=True)
        found.copy_(stacked, non_blocking=True)
        is_there = torch.cuda.Event()
        is_there.record()

        def wait() -> list[float]:
            is_there.synchronize()
            numbers: list[float] = found.tolist()
            return numbers

        return wait

    def least(self, value: int) -> int:
        """The smallest of the ranks' values."""
        tensor = torch.tensor(value, device=self.device)
        if self.size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return int(tensor)

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def open_world(device: Device = "auto") -> Iterator[World]:
    """The world that torchrun says this process is in, or a world of its own."""
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if on_gpu and not torch.cuda.is_available():
        raise UserError("train.device is cuda, and torch sees no GPU; take cpu or auto")
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size > 1:
        check_told()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    here = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        if local_rank >= torch.cuda.device_count():
            raise UserError(
                f"process {local_rank} of this machine has no GPU, there are "
                f"{torch.cuda.device_count()}; start as many: --nproc-per-node"
            )
        torch.cuda.set_device(here)
    if size == 1:
        yield World(device=here)
        return
    rank = int(os.environ["RANK"])
    try:
        join(rank, size, here)
        yield World(rank=rank, size=size, device=here)
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        raise UserError(
            f"rank {rank} lost another rank ({str(error).strip().splitlines()[0]}), whose own "
            "messages say why. The last checkpoint is whole: the same command goes on from it"
        ) from None
    dist.destroy_process_group()  # not after an error: it would wait for ranks that are gone


def check_told() -> None:
    """Whether torchrun, or whatever said how many processes there are, has said the rest."""
    needed = ("RANK", "MASTER_ADDR", "MASTER_PORT")
    if missing := [name for name in needed if not os.environ.get(name)]:
        raise UserError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and {', '.join(missing)} not set; start "
            "the processes with torchrun, or unset WORLD_SIZE for one alone"
        )


def join(rank: int, size: int, device: torch.device) -> None:
    """Meets the other ranks, where torchrun says.

    A restart may find the addresses of the ranks before it: so each has a place of its own.
    """
    store, _, _ = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.PrefixStore(f"attempt-{attempt}", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=size,
        device_id=device if on_gpu else None,
    )


def spread(model: nn.Module, world: World, sharding: Sharding) -> nn.Module:
    """What to call in the model's place, so that gradients are averaged over the ranks.

    none  every rank holds all weights
    full  every rank holds a part of each weight, gradient and moment (FSDP2)
    """
    if world.size == 1:
        return model
    if sharding == "none":
        ids = [world.device.index] if world.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    if not isinstance(model, Bert):
        raise UserError("train.sharding = full is for encoders; a head is small: take none")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    for layer in dict.fromkeys(model.layers):  # shared ones are there more than once
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def syncing(model: nn.Module, is_last: bool) -> AbstractContextManager[None]:
    """Only the last micro-batch of a step has its gradients, then the step's, sent around."""
    if isinstance(model, DistributedDataParallel):
        return nullcontext() if is_last else model.no_sync()
    if set_sync := getattr(model, "set_requires_gradient_sync", None):  # FSDP2 adds it
        set_sync(is_last)
    return nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which every rank may hold a part; all ranks must ask together."""
    if hasattr(tensor, "full_tensor"):
        full: Tensor = tensor.full_tensor()
        return full
    return tensor


def own_part(tensor: Tensor) -> Tensor:
    """The part that this rank holds, as a plain tensor in the same memory."""
    if hasattr(tensor, "to_local"):
        part: Tensor = tensor.to_local()
        return part
    return tensor


def part_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """The part of a whole tensor that belongs to this rank's part of a parameter."""
    tensor = tensor.to(parameter.device)
    if not hasattr(parameter, "full_tensor"):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    # Every rank has the whole: none need send it.
    return distribute_tensor(
        tensor, parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether an error says that another rank is gone."""
    words = ("gloo", "NCCL", "onnection closed", "onnection reset", "peer", "ProcessGroup")
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)
