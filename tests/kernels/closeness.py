"""How far a kernel may be from the same in float64."""

import torch

# Of the error's norm. A GPU multiplies float32 with 10 bits, as it does for torch if asked to.
FLOAT32 = 2e-3 if torch.cuda.is_available() else 2e-6
BOUNDS = {torch.float32: FLOAT32, torch.float16: 2e-3, torch.bfloat16: 1e-2}

# Of copies in eight bits: what was rounded before lies now and then on the other side of a border.
EIGHT_BITS = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}


def error_of(found, wanted):
    """The norm of the difference, as a share of what is wanted."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    assert found.shape == wanted.shape
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))


def check_close(found, wanted, dtype):
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert error_of(one, other) < BOUNDS[dtype], place
