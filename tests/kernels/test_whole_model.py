"""A whole model with its kernels: over two ranks, and compiled, it learns what it learns alone.

Where there is no GPU, the plain twins go through the same.
"""

import json
import os
import subprocess
import sys

import pytest
import torch

from bertie.model.bert import Bert, pack
from bertie.model.config import ModelConfig
from bertie.objectives import cross_entropy, linear_cross_entropy
from tests.kernels.closeness import BOUNDS, error_of

CONFIG = ModelConfig(
    vocab_size=200,
    hidden_size=64,
    num_layers=3,
    num_heads=2,
    max_positions=160,
    dropout=0.0,
    attention_dropout=0.0,
    init_std=0.1,
)
LENGTHS = (17, 129, 1, 64)
# What is added up in another order, and rounded at every step.
BOUND = 2 * BOUNDS[torch.bfloat16]


def make_model(device):
    generator = torch.Generator().manual_seed(0)
    return Bert(CONFIG, ("masked_lm",), generator=generator).to(device).train()


def make_packed(first, last):
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(5, 200, (length,), generator=generator) for length in LENGTHS]
    return pack(sequences[first:last])


def backward(model, packed, device, is_projected=False):
    """Every other token is predicted, as itself; the loss, a sum."""
    batch = [part.to(device) if isinstance(part, torch.Tensor) else part for part in packed]
    predicted = torch.arange(0, len(packed.ids), 2, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        (rows,) = model(*batch, predicted=predicted, is_projected=is_projected)
        labels = batch[0][predicted]
        if is_projected:
            term = cross_entropy(rows, labels)
        else:
            bert = getattr(model, "module", model)  # DDP holds it
            term = linear_cross_entropy(rows, *bert.output_layer(), labels)
    term.total.backward()
    return term.total.detach()


def errors_of_gradients(model, other, scale=1):
    """By parameter. Keys' biases have a gradient of 0 but for rounding: they are left out."""
    errors = {}
    for (name, one), wanted in zip(model.named_parameters(), other.parameters(), strict=True):
        found, wanted = scale * one.grad, wanted.grad
        if name.endswith("qkv.bias"):
            found, wanted = (part.unflatten(0, (3, -1))[[0, 2]] for part in (found, wanted))
        errors[name] = error_of(found, wanted)
    return errors


def test_two_ranks_with_kernels_are_one(device):
    many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *many, "-m", "tests.kernels.two_ranks", device.type],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    assert len(errors) == len(list(make_model("cpu").parameters()))
    assert not {name: error for name, error in errors.items() if error > BOUND}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: a CPU has no kernels")
def test_compiled_with_kernels_is_the_same_in_one_graph(device):
    plain, compiled = make_model(device), make_model(device)
    compiled.compile(dynamic=False, fullgraph=True)
    torch._dynamo.reset()
    packed = make_packed(0, 4)
    losses = [backward(model, packed, device, True) for model in (plain, compiled)]
    assert error_of(losses[1], losses[0]) < BOUND
    errors = errors_of_gradients(compiled, plain)
    assert not {name: error for name, error in errors.items() if error > BOUND}
    torch._dynamo.reset()
