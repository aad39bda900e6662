"""How well a model fills masks and tells pairs, on documents that no training has seen, by source.

    python benchmarks/held_out.py MODEL --corpus CORPUS --out held_out.json

Documents are those that `bertie prepare` holds out: SHA-1 of the text % 100 == 0. Those of a group
(Wikipedia, books) become a store of their own, so that a NotNext sentence comes from the same
group. Pairs of up to 128 tokens, 15% chosen, of which 80% are [MASK], 10% random, 10% kept; the
masks are the same in every run.
"""

import argparse
import gzip
import json
import lzma
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import machine
from bertie.checkpoint.model_dir import open_model
from bertie.config import build
from bertie.data.corpus import CorpusConfig, document_hash, is_held_out
from bertie.data.files import find_files
from bertie.data.loader import Batch, Loader
from bertie.data.masking import MaskConfig
from bertie.data.steps import DataConfig, LoaderConfig
from bertie.data.store import Store, open_store
from bertie.plan import settings_of
from bertie.prepare import PrepareRecipe, prepare
from bertie.pretrain import PretrainRecipe, held_out_of
from bertie.text.tokenizer import Tokenizer
from bertie.train.distributed import open_world
from bertie.train.evaluate import evaluate_pretraining

GROUPS = ("wiki", "books")  # what the names of sources begin with
OPENERS = {".xz": lzma.open, ".gz": gzip.open}
PERCENT = 1  # of the documents; the recipe's
LENGTH = 128
BATCH = 64  # instances of a step; the last ones, fewer than that, are left out
MASKING = MaskConfig(rate=0.15, static_copies=1)


def gather(corpus: Path, out: Path, percent: int) -> dict[str, Path]:
    """The held-out documents of each group, in a file of JSON lines."""
    out.mkdir(parents=True, exist_ok=True)
    paths = {group: out / f"{group}.jsonl" for group in GROUPS}
    lines: dict[str, list[str]] = {group: [] for group in GROUPS}
    for line in read_lines(corpus):
        row = json.loads(line)
        group = row["source"].partition("_")[0]
        if group in lines and is_held_out(document_hash(row["text"]), percent):
            lines[group].append(line)
    for group, path in paths.items():
        path.write_text("".join(lines[group]), encoding="utf-8")
    return {group: path for group, path in paths.items() if lines[group]}


def read_lines(corpus: Path) -> Iterator[str]:
    for path in find_files([corpus]):
        opener = OPENERS.get(path.suffix, open)
        with opener(path, "rt", encoding="utf-8") as lines:  # type: ignore[operator]
            yield from lines


def make_store(text: Path, model: Path, out: Path) -> Store:
    """All of the text, as the model's pieces."""
    recipe = PrepareRecipe(corpus=CorpusConfig(held_out_percent=0))
    prepare([text], model, out, recipe, workers=1)
    return open_store(out)


def make_batches(store: Store, limit: int) -> Iterator[Batch]:
    """One pass over the instances; at most `limit` of them, if it is not 0."""
    data = DataConfig(masking=MASKING, loader=LoaderConfig(batch_size=BATCH))
    data = replace(data, instances=replace(data.instances, kind="nsp", max_length=LENGTH))
    with Loader(store, data) as loader:
        num_instances = loader.header().num_instances
        for number in range(max(1, min(num_instances, limit or num_instances) // BATCH)):
            yield from loader.step(number).micro_batches


def evaluate_groups(model_dir: Path, texts: dict[str, Path], limit: int = 0) -> dict[str, Any]:
    """The figures of each group; nats a character are the loss by the characters of a token."""
    model, tokenizer = open_model(model_dir).model, Tokenizer.load(model_dir)
    found: dict[str, Any] = {}
    with open_world("auto") as world, TemporaryDirectory() as folder:
        model.to(world.device)
        for group, text in texts.items():
            store = make_store(text, model_dir, Path(folder) / group)
            figures = evaluate_pretraining(
                model,
                make_batches(store, limit),
                mask_id=tokenizer.id(tokenizer.config.mask_token),
                pair="nsp",
                world=world,
            )
            manifest = store.manifest
            characters = manifest.statistics["characters"] / manifest.num_tokens
            found[group] = figures | {
                "nats_per_character": figures["mlm_loss"] / characters,
                "characters_per_token": characters,
                "num_documents": manifest.num_documents,
                "num_tokens": manifest.num_tokens,
            }
    return found


def look_again(model_dir: Path, run: Path, store: Path) -> dict[str, Any]:
    """What the run logged at its end, and the same look at what its model was stored as."""
    logged = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    settings = json.loads((run / "run.json").read_text(encoding="utf-8"))["settings"]
    digest = settings.pop("store_digest")
    text = open_store(store)
    if text.manifest.digest != digest:
        raise SystemExit(f"{store} is not the store of {run}: {text.manifest.digest}, not {digest}")
    recipe = build(PretrainRecipe, settings)
    data = settings_of(recipe.data, recipe.phases[-1], recipe.train)
    with open_world("auto") as world:
        model = open_model(model_dir).model.to(world.device)
        figures, _ = held_out_of(recipe, data, text, world)(model)
    return {"before": logged["held_out"], "after": figures}


def describe_protocol() -> dict[str, Any]:
    return {"length": LENGTH, "masking": asdict(MASKING), "pairs": "nsp, within the group"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="model directory with the heads of pre-training")
    parser.add_argument("--corpus", type=Path, required=True, help="JSON lines: text and source")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument("--percent", type=int, default=PERCENT, help="of the documents, held out")
    parser.add_argument("--limit", type=int, default=0, help="instances of a group, for a try")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        texts = gather(options.corpus, Path(folder), options.percent)
        result = evaluate_groups(options.model, texts, options.limit)
    about = machine.describe("torch", "numpy")
    whole = {"machine": about, "result": describe_protocol() | {"groups": result}}
    options.out.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    for group, figures in result.items():
        print(group, {name: round(value, 4) for name, value in figures.items()})


if __name__ == "__main__":
    main()
