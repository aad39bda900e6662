"""Held-out figures equal a slow computation, one target at a time, and any ranks give the same."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
import torch

from bertie.data.instances import InstanceConfig
from bertie.data.loader import Batch, Loader
from bertie.data.masking import MaskConfig
from bertie.data.steps import DataConfig, LoaderConfig
from bertie.data.store import Store
from bertie.model.bert import Bert
from bertie.model.config import ModelConfig
from bertie.train import evaluate as evaluating
from bertie.train.distributed import CPU, World
from bertie.train.evaluate import evaluate_pretraining
from tests.data.stores import PIECES, TOKENIZER, awkward, write_store

MASK = TOKENIZER.id("[MASK]")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(tmp_path_factory.mktemp("held"), awkward(huge=20))


@pytest.fixture(scope="module")
def model() -> Bert:
    config = ModelConfig(
        vocab_size=len(PIECES), hidden_size=12, num_layers=2, num_heads=3, max_positions=40,
        init_std=0.3,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    return Bert(config, ("masked_lm", "next_sentence"), generator=generator)


def batches_of(
    store: Store, *, rank: int = 0, ranks: int = 1, fill: bool = False, mask_share: float = 0.4
) -> list[Batch]:
    rest = (1 - mask_share) / 2
    config = DataConfig(
        instances=InstanceConfig(max_length=32),
        masking=MaskConfig(mask_share=mask_share, random_share=rest, keep_share=rest),
        loader=LoaderConfig(batch_size=14, micro_tokens=160, fill=fill),
    )
    with Loader(store, config, rank=rank, world_size=ranks) as loader:
        return [batch for number in range(3) for batch in loader.step(number).micro_batches]


def evaluate_slowly(model: Bert, batches: list[Batch]) -> dict[str, float]:
    """Sequence by sequence, target by target, in Python's numbers."""
    losses, rights = defaultdict[str, list[float]](list), defaultdict[str, list[bool]](list)

    def note(kinds: tuple[str, ...], row: torch.Tensor, label: int) -> None:
        values = row.tolist()
        loss = math.log(sum(math.exp(v) for v in values)) - values[label]
        for kind in kinds:
            losses[kind].append(loss)
            rights[kind].append(values.index(max(values)) == label)

    model.eval()
    for batch in batches:
        for n, (low, high) in enumerate(zip(batch.bounds, batch.bounds[1:], strict=False)):
            if low == high:
                continue
            parts = [t[low:high] for t in (batch.ids, batch.segments, batch.positions)]
            with torch.no_grad():
                words, pair = model(*parts, torch.tensor([0, high - low]), int(high - low))
            if batch.pair_labels[n] >= 0:
                note(("nsp",), pair[0], int(batch.pair_labels[n]))
            for place, label in zip(batch.predicted, batch.labels.tolist(), strict=True):
                if low <= place < high and label >= 0:
                    seen = int(batch.ids[place])
                    kind = "mask" if seen == MASK else "kept" if seen == label else "random"
                    note((kind, "mlm"), words[place - low], label)
    means = {f"{kind}_loss": sum(some) / len(some) for kind, some in losses.items()}
    return means | {f"{kind}_accuracy": sum(some) / len(some) for kind, some in rights.items()}


def evaluate(model: Bert, batches: list[Batch], **more: object) -> dict[str, float]:
    settings = {"mask_id": MASK, "pair": "nsp", "world": World()} | more
    return evaluate_pretraining(model, batches, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("fill", [False, True])
def test_masked_random_and_kept_apart_equal_the_slow_way(
    store: Store, model: Bert, fill: bool
) -> None:
    batches = batches_of(store, fill=fill)
    expected = evaluate_slowly(model, batches)
    kinds = ("mask", "random", "kept", "mlm", "nsp")
    assert set(expected) == {f"{k}_{f}" for k in kinds for f in ("loss", "accuracy")}
    assert evaluate(model, batches) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("heads", [("masked_lm", "next_sentence"), ("next_token",)], ids=str)
def test_logits_are_made_a_few_rows_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch, heads: tuple[str, ...]
) -> None:
    """Of a language model, which predicts all tokens, they would take more than its training."""
    config = ModelConfig(
        vocab_size=len(PIECES), hidden_size=12, num_layers=1, num_heads=3, attention="left"
    )
    model, batches = Bert(config, heads), batches_of(store)
    expected = evaluate(model, batches)
    seen, losses_of = [], evaluating.token_losses

    def note(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.append(len(logits) if logits.shape[1] == len(PIECES) else 0)
        return losses_of(logits, labels)

    monkeypatch.setattr(evaluating, "token_losses", note)
    monkeypatch.setattr(evaluating, "BLOCK_BYTES", 5 * 4 * len(PIECES))
    assert evaluate(model, batches) == pytest.approx(expected, rel=1e-6)
    assert max(seen) == 5


@dataclass
class FakeWorld:
    """A rank that is told what the others have."""

    others: list[list[float]]
    device: torch.device = CPU
    given: list[float] = field(default_factory=list)

    def sum(self, values: list[torch.Tensor]) -> list[float]:
        self.given = [float(value) for value in values]
        return [sum(column) for column in zip(self.given, *self.others, strict=True)]


def test_two_ranks_have_the_figures_of_one(store: Store, model: Bert) -> None:
    second = FakeWorld([])
    halves = [batches_of(store, rank=rank, ranks=2) for rank in (0, 1)]
    own = evaluate(model, halves[1], world=second)
    both = evaluate(model, halves[0], world=FakeWorld([second.given]))
    assert both == pytest.approx(evaluate(model, batches_of(store)), rel=1e-5)
    assert both != pytest.approx(own, rel=1e-3)


def test_a_kind_without_targets_has_no_figure(store: Store, model: Bert) -> None:
    figures = evaluate(model, batches_of(store, mask_share=1.0))
    assert {name.partition("_")[0] for name in figures} == {"mask", "mlm", "nsp"}
    assert figures["mask_loss"] == figures["mlm_loss"]


@pytest.mark.parametrize("pair", ["nsp", "sop"])
def test_figures_of_pairs_bear_the_name_of_the_loss(store: Store, pair: str) -> None:
    config = ModelConfig(vocab_size=len(PIECES), hidden_size=12, num_layers=1, num_heads=3)
    figures = evaluate(Bert(config, ("next_sentence",)), batches_of(store), pair=pair)
    assert set(figures) == {f"{pair}_loss", f"{pair}_accuracy"}


def test_it_leaves_the_model_as_it_was(store: Store, model: Bert) -> None:
    batches = batches_of(store)
    before = {name: p.clone() for name, p in model.named_parameters()}
    for mode in (True, False):
        model.train(mode)
        first = evaluate(model, batches)
        assert model.training is mode
        assert evaluate(model, batches) == first  # no dropout
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


def test_half_precision_gives_about_the_same(store: Store, model: Bert) -> None:
    batches = batches_of(store)
    half = evaluate(model, batches, dtype=torch.bfloat16)
    for name, value in evaluate(model, batches).items():
        if name.endswith("_loss"):
            assert half[name] == pytest.approx(value, rel=0.05)
