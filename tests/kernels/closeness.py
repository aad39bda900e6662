"""How far a kernel may be from the same in float64."""

import torch

BOUNDS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # of the error's norm


def error_of(found, wanted):
    """The norm of the difference, as a share of what is wanted."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    assert found.shape == wanted.shape
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))


def check_close(found, wanted, dtype):
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert error_of(one, other) < BOUNDS[dtype], place
