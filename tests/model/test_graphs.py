"""Shapes that graphs are recorded for: few, little larger, and without effect on what is asked."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertie.model.bert import Bert, pack
from bertie.model.config import ModelConfig
from bertie.model.graphs import Flat, choose_shape, fill
from tests.kernels.closeness import error_of

CONFIG = ModelConfig(
    vocab_size=60, hidden_size=32, num_layers=2, num_heads=2, dropout=0.0, attention_dropout=0.0
)
LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=40)


def make_flat(lengths):
    generator = torch.Generator().manual_seed(len(lengths))
    packed = pack([torch.randint(5, 60, (n,), generator=generator) for n in lengths])
    return Flat(*packed[:4]), packed.longest


@given(LENGTHS)
def test_what_is_filled_has_the_shape_and_begins_with_what_was_there(lengths):
    flat, longest = make_flat(lengths)
    shape = choose_shape(sum(lengths), len(lengths), longest, 512)
    filled = fill(flat, shape)
    assert len(filled.ids) == shape.num_tokens >= sum(lengths)
    assert len(filled.bounds) == shape.num_sequences + 1
    assert shape.num_tokens <= max(sum(lengths) * 9 / 8 + 1, sum(lengths) + 63)
    sizes = filled.bounds.diff()
    assert int(sizes.min()) >= 0 and int(sizes.max()) <= shape.longest
    assert int(filled.bounds[-1]) == shape.num_tokens
    for part, whole in zip(flat, filled, strict=True):
        assert torch.equal(part, whole[: len(part)])
    starts = torch.repeat_interleave(filled.bounds[:-1], sizes)
    assert torch.equal(filled.positions, torch.arange(shape.num_tokens) - starts)


def test_shapes_are_few():
    """Of all numbers of tokens up to 16,384 and one number of sequences."""
    shapes = {choose_shape(num_tokens, 32, 100, 512) for num_tokens in range(100, 16_384)}
    assert len(shapes) < 80


def test_the_rows_that_were_there_are_the_same():
    model = Bert(CONFIG, generator=torch.Generator().manual_seed(0)).eval()
    flat, longest = make_flat([5, 17, 30, 1])
    shape = choose_shape(53, 4, longest, 512)
    with torch.no_grad():
        wanted = model.encode(*flat, longest)
        found = model.encode(*fill(flat, shape), shape.longest)
    torch.testing.assert_close(found[:53], wanted)


def test_no_sequence_becomes_longer_than_the_model_can_read():
    flat, longest = make_flat([90, 100, 3])
    shape = choose_shape(193, 3, longest, 101)
    filled = fill(flat, shape)
    assert shape.longest == 101 and int(filled.bounds.diff().max()) <= 101
    assert int(filled.positions.max()) < 101 and len(filled.ids) == int(filled.bounds[-1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # torch's, of its first product
@pytest.mark.parametrize("head", ["span", "sequence"])
def test_played_is_asked_for_anew(head):
    """Logits and gradients of several shapes, each played after the others were."""
    config = replace(CONFIG, init_std=0.2)  # large, so that a mistake is no rounding error
    model = Bert(config, (head,), generator=torch.Generator().manual_seed(0)).cuda().train()
    for _ in range(3):
        for lengths in ([5, 17], [60, 9, 30], [100]):
            flat, longest = make_flat(lengths)
            flat = Flat(*(part.cuda() for part in flat))
            answers = []
            for graphs in (None, model.graphs):
                model.graphs = graphs
                with torch.autocast("cuda", torch.bfloat16):
                    (logits,) = model(*flat, longest)
                torch.manual_seed(len(lengths))
                logits.backward(torch.randn_like(logits))
                answers.append([logits.detach(), *(p.grad for p in model.parameters())])
                model.zero_grad()
                del logits
            if model.graphs is None:
                model.record()
            for found, wanted in zip(*answers, strict=True):
                assert error_of(found, wanted) < 0.02
    assert len(model.graphs.recorded) == 3
