"""Shapes that graphs are recorded for: few, little larger, and without effect on what is asked."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertie.model import graphs
from bertie.model.bert import Bert, pack
from bertie.model.config import ModelConfig
from bertie.model.graphs import Flat, choose_shape, fill, fill_kept
from tests.kernels.closeness import error_of

pytestmark = pytest.mark.gpu
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


def test_shapes_of_a_run_are_few():
    """15% of the tokens are predicted, and a row of each of 32 sequences is pooled."""
    counts = range(3_000, 4_000)
    shapes = {choose_shape(num, 32, 128, 512, round(0.15 * num) + 32) for num in counts}
    assert len(shapes) < 10


@given(st.integers(1, 5_000))
def test_rows_that_are_kept_come_first_and_the_others_are_there(num_kept):
    shape = choose_shape(6_000, 60, 100, 512, num_kept)
    kept = torch.randint(6_000, (num_kept,), generator=torch.Generator().manual_seed(num_kept))
    filled = fill_kept(kept, shape)
    assert len(filled) == shape.num_kept <= max(num_kept * 5 / 4 + 1, num_kept + 63)
    assert torch.equal(filled[:num_kept], kept)
    assert int(filled.min()) >= 0 and int(filled.max()) < shape.num_tokens


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


class Tape:
    """What a CUDA graph does, asked for anew at every replay."""

    def __init__(self, replay):
        self.replay = replay


class OnTape:
    """`graphs.Recorded` without a GPU: the same places for what goes in and comes out."""

    def __init__(self, encode, shared, given, longest):
        self.given = given.clone()

        def forward():
            with torch.enable_grad():
                self.made = encode(*self.given.flat, longest=longest, kept=self.given.kept)
            self.rows = self.made.detach()

        def backward():
            found = torch.autograd.grad(self.made, shared.parameters, self.gradient)
            torch._foreach_copy_(list(shared.found), list(found))

        forward()
        self.gradient = torch.full_like(self.rows, float("nan"))
        self.forward, self.backward = Tape(forward), Tape(backward)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(graphs, "Recorded", OnTape)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


def ask(model, lengths):
    """Logits of all heads and gradients of everything; and clean again."""
    flat, longest = make_flat(lengths)
    num_tokens = sum(lengths)
    predicted = torch.arange(1, num_tokens, 4)
    logits = model(*flat, longest, predicted=predicted)
    sum(one.square().sum() for one in logits).backward()
    found = [*(one.detach() for one in logits), *(p.grad for p in model.parameters())]
    model.zero_grad()
    return found


@pytest.mark.parametrize(
    ("attention", "heads"),
    [
        ("both", ("masked_lm", "next_sentence")),
        ("both", ("sequence",)),
        ("both", ("span",)),
        ("left", ("next_token",)),
        ("left", ("sequence",)),
    ],
)
def test_what_is_played_is_what_heads_read(attention, heads, no_gpu):
    config = replace(CONFIG, attention=attention)
    model = Bert(config, heads, generator=torch.Generator().manual_seed(0)).train()
    shapes = ([5, 17], [60, 9, 30], [100])
    wanted = [ask(model, lengths) for lengths in shapes]
    model.record()
    for _ in range(3):
        for lengths, answer in zip(shapes, wanted, strict=True):
            for found, one in zip(ask(model, lengths), answer, strict=True):
                torch.testing.assert_close(found, one)
    assert len(model.graphs.recorded) == 3


def test_how_many_tokens_are_played_is_a_choice(no_gpu):
    model = Bert(CONFIG, ("span",)).train()
    for most, count in ((64, 0), (65, 1)):
        model.record(most)
        for _ in range(3):
            ask(model, [60, 5])
        assert len(model.graphs.recorded) == count


def play_once(model):
    flat, longest = make_flat([60, 5])
    return model(*flat, longest)[0]


def test_a_pass_takes_the_memory_of_its_graphs_while_it_can_be_walked_back(no_gpu):
    """One that never will be is waited for no longer than it lives."""
    model = Bert(CONFIG, ("span",)).train()
    model.record()
    ask(model, [60, 5])
    first = play_once(model)
    assert model.graphs.is_waiting and len(model.graphs.recorded) == 1
    wanted = play_once(model)  # made anew: not played over the first
    torch.testing.assert_close(wanted, first)
    del first, wanted
    assert not model.graphs.is_waiting
    last = play_once(model)
    assert model.graphs.is_waiting
    last.sum().backward(retain_graph=True)
    assert not model.graphs.is_waiting
    with pytest.raises(AssertionError, match="used up"):
        last.sum().backward()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # torch's, of its first product
@pytest.mark.parametrize(
    ("attention", "head"),
    [("both", "span"), ("both", "sequence"), ("both", "masked_lm"), ("left", "next_token")],
)
def test_played_is_asked_for_anew(attention, head):
    """Logits and gradients of several shapes, each played after the others were."""
    # Large weights, so that a mistake is no rounding error.
    config = replace(CONFIG, init_std=0.2, attention=attention)
    model = Bert(config, (head,), generator=torch.Generator().manual_seed(0)).cuda().train()
    for _ in range(3):
        for lengths in ([5, 17], [60, 9, 30], [100]):
            flat, longest = make_flat(lengths)
            flat = Flat(*(part.cuda() for part in flat))
            answers = []
            for used in (None, model.graphs):
                model.graphs = used
                predicted = torch.arange(1, sum(lengths), 4, device="cuda")
                with torch.autocast("cuda", torch.bfloat16):
                    (logits,) = model(*flat, longest, predicted=predicted)
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
