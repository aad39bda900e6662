"""What a GPU does in a step: its ceiling, and the time by kind of kernel."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

# The first that fits a kernel's name; "products" are cuBLAS's and CUTLASS's names.
KINDS = {
    "attention": r"attend|flash|fmha|cudnn.*(sdpa|attn)|sdpa",
    "products": r"nvjet|cutlass|gemm|xmma|splitKreduce|gemv",
    "norms, dropout, residual": r"norm_(forward|backward)|layer_norm|dropout|GammaBeta",
    "gelu": r"gelu",
    "loss": r"score_rows|softmax|nll|cross_entropy|log_sum",
    "optimizer and clipping": r"multi_tensor_apply|FusedOptim|foreach",
    "embeddings": r"embedding|gather|index|scatter|radix|segment_offset|grad_weight",
}


def measure_ceiling(size: int = 8192, repeats: int = 20) -> float:
    """Operations a second of a large square product in bf16."""
    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        a @ b
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        a @ b
    end.record()
    torch.cuda.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return 2 * size**3 * repeats / (milliseconds / 1000)


def name_kind(kernel: str) -> str:
    found = (kind for kind, words in KINDS.items() if re.search(words, kernel, re.IGNORECASE))
    return next(found, "other")


def profile_kinds(step: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a step by kind of kernel, the longest first; and those without a kernel."""
    step()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    kernels = [
        event
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.name.startswith("Optimizer")  # a span around kernels
    ]
    milliseconds: Counter[str] = Counter()
    for event in kernels:
        milliseconds[name_kind(event.name)] += event.device_time / 1000
    first = min(event.time_range.start for event in kernels)
    last = max(event.time_range.end for event in kernels)
    idle = (last - first) / 1000 - sum(milliseconds.values())
    found = {kind: round(time, 2) for kind, time in milliseconds.most_common()}
    return found | {"no kernel": round(max(0.0, idle), 2)}
