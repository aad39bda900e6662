"""The text that was held out, as batches of a length, and how well a model does on it."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from bertie.data.entropy import guess_by_frequency
from bertie.data.loader import Batch, Loader
from bertie.data.steps import DataConfig
from bertie.data.store import HELD_OUT, Store, open_store
from bertie.model.bert import Bert
from bertie.objectives import IGNORED
from bertie.train.distributed import World
from bertie.train.evaluate import evaluate_pretraining
from bertie.train.loop import DTYPES, Precision

EVALUATED_STEPS = 20  # batches, at most


class HeldOut:
    """Losses and accuracies on the documents that were held out, with masks that stay the same."""

    def __init__(
        self,
        store: Store,
        data: DataConfig,
        *,
        pair: str | None,  # the loss of pairs, if they are told apart
        precision: Precision,
        world: World,
    ) -> None:
        self.pair, self.dtype, self.world = pair or "nsp", DTYPES.get(precision), world
        self.batches: list[Batch] = []
        tokenizer = store.load_tokenizer()
        self.mask_id = tokenizer.id(tokenizer.config.mask_token)
        if (store.folder / HELD_OUT).is_dir():
            held_out = open_store(store.folder / HELD_OUT)
            if held_out.manifest.num_documents > 1 or pair is None:
                self.batches = list(held_out_batches(held_out, data, world))

    def __call__(self, model: Bert) -> tuple[dict[str, float], float | None]:
        if not self.batches:
            return {}, None
        figures = evaluate_pretraining(
            model,
            self.batches,
            mask_id=self.mask_id,
            pair=self.pair,
            world=self.world,
            dtype=self.dtype,
        )
        # The first that is there.
        headlines = ("mask_loss", "mlm_loss", "lm_loss", f"{self.pair}_loss")
        return figures, next((-figures[name] for name in headlines if name in figures), None)

    def guess(self, store: Store) -> dict[str, float]:
        """The figures of [MASK] positions for one who knows the pieces' frequencies alone."""
        parts = [b.labels[b.ids[b.predicted] == self.mask_id] for b in self.batches]
        labels = torch.cat([torch.zeros(0, dtype=torch.int64), *parts]).numpy()
        labels = labels[labels != IGNORED]
        sums = (*guess_by_frequency(store, labels), len(labels))
        loss, num_right, total = self.world.sum(sums)
        return {"mask_loss": loss / total, "mask_accuracy": num_right / total} if total else {}


def held_out_batches(store: Store, data: DataConfig, world: World) -> Iterator[Batch]:
    data = replace(data, masking=replace(data.masking, static_copies=1))
    data = replace(data, loader=replace(data.loader, num_workers=0))
    with Loader(store, data, rank=world.rank, world_size=world.size) as loader:
        num_steps = loader.header().num_instances // data.loader.batch_size
        for number in range(min(max(1, num_steps), EVALUATED_STEPS)):
            yield from loader.step(number).micro_batches
