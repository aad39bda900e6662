"""The feature store: bytes of a token, its rate beside the engine's, and how fast heads learn.

    python benchmarks/features.py --model MINILM --data eng.testa              # all cores
    OMP_NUM_THREADS=1 python benchmarks/features.py ... --threads 1            # CPU time of one

The engine embeds a data set's sentences, as anyone would ask it to; its inputs go through the
engine's model with the rows thrown away; or through the model that features are made with, the rows
of all layers written to a store, and then the disk is waited for; or rows that are there are
written, without a model. They take turns. Then steps of 32 sentences train heads on the store:
every combination with the usual LSTM, and one combination with larger ones. With one thread CPU
time is counted, so that other work on the machine matters little.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import torch

import machine
from bertie.data.features import FeatureRows, create_layers, put
from bertie.data.masking import runs
from bertie.datasets import DataFiles
from bertie.feature_sets import read_feature_sets
from bertie.features import Encoded, encode_file, make_features, open_frozen
from bertie.infer.batches import BATCH_TOKENS, make_batches, pack_inputs
from bertie.infer.engine import Engine
from bertie.infer.features import flush_all, write_vectors
from bertie.learners import HeadConfig, HeadLearner, RunSpec
from bertie.model.bert import Bert
from bertie.model.feature_head import Combination
from bertie.tasks.steps import TaskLoader
from bertie.train.optim import BertOptimizer, OptimConfig

BATCH_SIZE, NUM_STEPS = 32, 12
HIDDEN_SIZES = (64, 128, 256, 768)


@torch.inference_mode()
def read_only(model: Bert, encoded: Encoded) -> Iterator[int]:
    """All inputs through all layers, nothing kept."""
    lengths = np.diff(encoded.instances.bounds)
    for batch in make_batches(lengths.tolist(), BATCH_TOKENS):
        inputs = [encoded.instances.input(number) for number in batch]
        model.encode(*pack_inputs(inputs, model.embeddings.token.weight.device))
        yield int(lengths[batch].sum())


def read_and_write(model: Bert, encoded: Encoded, tables: Mapping[int, np.memmap]) -> list[int]:
    return list(write_vectors(model, encoded.instances, encoded.kept, tables))


def write_only(encoded: Encoded, tables: Mapping[int, np.memmap], vectors: np.ndarray) -> None:
    """The rows that are kept, batch by batch, from vectors that are there."""
    for batch in make_batches(np.diff(encoded.index.inputs).tolist(), BATCH_TOKENS):
        starts = encoded.index.inputs[batch]
        rows = runs(starts, encoded.index.inputs[np.array(batch) + 1] - starts)
        for layer, table in tables.items():
            put(table, rows, vectors[: len(rows)], layer)


def seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    started_at = clock()
    work()
    return clock() - started_at


def time_writing(
    engine: Engine, model: Bert, encoded: Encoded, rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Tokens a second of each way, the median of rounds that take turns."""
    config = model.config
    names = ("embedded", "read", "read and written", "written", "flushed")
    taken: dict[str, list[float]] = {name: [] for name in names}
    texts = [" ".join(example.words) for example in encoded.data.examples]
    vectors = np.ones((2 * BATCH_TOKENS, config.hidden_size), np.float16)
    for _ in range(rounds):
        with TemporaryDirectory() as folder:
            tables = create_layers(
                Path(folder),
                range(config.num_layers + 1),
                num_tokens=len(encoded.kept),
                hidden_size=config.hidden_size,
            )
            ways: dict[str, Callable[[], object]] = {
                "embedded": lambda: engine.embed(texts, layer=-1),
                "read": lambda: list(read_only(engine.model, encoded)),
                "read and written": partial(read_and_write, model, encoded, tables),
                "flushed": partial(flush_all, tables),
                "written": partial(write_only, encoded, tables, vectors),
            }
            for name, work in ways.items():
                taken[name].append(seconds(work, clock))
    both = zip(taken["read and written"], taken.pop("flushed"), strict=True)
    taken["read, written and flushed to disk"] = [sum(pair) for pair in both]
    num_tokens = len(encoded.instances.ids)
    return {name: round(num_tokens / median(times)) for name, times in taken.items()}


def time_head(
    learner: HeadLearner, combination: Combination, loader: TaskLoader, clock: Callable[[], float]
) -> float:
    """Words a second of training steps."""
    spec = RunSpec(seed=0, batch_size=BATCH_SIZE, peak=1e-3, budget="", combination=combination)
    head = learner.make(spec, None).train()
    optimizer = BertOptimizer(head, OptimConfig(name="adamw"))
    steps = [loader.step(number) for number in range(NUM_STEPS)]

    def train() -> None:
        for step in steps:
            for batch in step.micro_batches:
                loss = learner.task.objective(head, batch)["task"].total
                (loss / step.num_targets["task"]).backward()
            optimizer.step(1e-3)
            optimizer.zero_grad()

    train()  # the first time, pages are read from disk
    return sum(step.num_tokens for step in steps) / seconds(train, clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="tagged sentences")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    engine, model = Engine.load(options.model, show=False), open_frozen(options.model, "auto")
    encoded = encode_file(options.model, options.data, {"name": "tag"}, skip_bad=False)
    result: dict[str, Any] = {"threads": options.threads, "inputs": len(encoded.instances)}
    result["tokens_per_s"] = time_writing(engine, model, encoded, options.rounds, clock)
    with TemporaryDirectory() as folder:
        out = Path(folder) / "store"
        store = make_features(options.model, options.data, out, task={"name": "tag"})
        made = store.manifest
        result["bytes_per_token"] = sum(made.file_bytes.values()) / made.num_tokens
        result["expected_bytes_per_token"] = 2 * len(made.layers) * made.hidden_size
        files, rows = DataFiles(train=out, dev=out), FeatureRows([store])
        sets = read_feature_sets(files, FeatureRows([store, store]))
        loader = TaskLoader(sets.train_instances, batch_size=BATCH_SIZE)

        def rate(combination: Combination, hidden_size: int) -> int:
            config = HeadConfig(hidden_size=hidden_size)
            learner = HeadLearner(config=config, rows=rows, task=sets.task)
            return round(time_head(learner, combination, loader, clock))

        usual = HeadConfig().hidden_size
        result["words_per_s"] = {name: rate(name, usual) for name in get_args(Combination)}
        result["words_per_s_of_hidden_size"] = {n: rate("last", n) for n in HIDDEN_SIZES}
    print(result)
    print("saved", machine.save("features", machine.describe("torch", "numpy"), result))


if __name__ == "__main__":
    main()
