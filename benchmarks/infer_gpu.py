"""Classes of texts on a GPU, bf16: the engine beside `transformers`, same weights, same texts.

    python benchmarks/infer_gpu.py --model MINILM --data GLUE              # MiniLM and base

Texts in, classes out, with everything between: the sentences of SST-2's and the pairs' first texts
of MRPC's training sets, in their order. `transformers` runs as its users run it: 64 texts at a
time, filled up to the longest. The classifier is fresh, and base has random weights; that does not
change the speed. Ways take turns, in an order that rotates; a ratio is the median over the turns.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers

import bertie
import machine
from bertie.checkpoint.model_dir import open_model, save_model
from bertie.model.bert import Bert
from bertie.model.config import named_size
from splits import read_column
from train_step import compare, time_turn

BATCH = 64
COLUMNS = {"SST-2": "sentence", "MRPC": "#1 String"}  # of the texts
GPU = torch.device("cuda")
Ask = Callable[[list[str]], np.ndarray]  # texts -> (N, C)


def write_model(size: str, source: Path, folder: Path) -> Path:
    """MiniLM, or a model of a size with random weights, with a fresh classifier for two labels."""
    generator = torch.Generator().manual_seed(0)
    model = (
        open_model(source, heads=("sequence",), num_labels=2, generator=generator).model
        if size == "minilm"
        else Bert(named_size(size), ("sequence",), generator=generator)
    )
    save_model(model, folder / size, tokenizer_from=source)
    return folder / size


def ask_transformers(directory: Path) -> Ask:
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(directory, dtype=torch.bfloat16).eval().to(GPU)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)

    @torch.inference_mode()
    def ask(texts: list[str]) -> np.ndarray:
        made = []
        for start in range(0, len(texts), BATCH):
            batch = tokenizer(
                texts[start : start + BATCH], padding=True, truncation=True, return_tensors="pt"
            )
            made.append(model(**batch.to(GPU)).logits.float().softmax(-1))
        return torch.cat(made).cpu().numpy()

    return ask


def ask_engine(directory: Path) -> Ask:
    model = bertie.load(directory, device="cuda", precision="bf16", show=False)
    return lambda texts: np.array([list(one.scores.values()) for one in model.classify(texts)])


def measure(directory: Path, texts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    ways = {"transformers": ask_transformers(directory), "bertie": ask_engine(directory)}
    size = options.texts
    turns = [texts[start : start + size] for start in range(0, len(texts) - size + 1, size)]
    turns = turns[: options.rounds]
    found = {name: ask(turns[0]) for name, ask in ways.items()}
    difference = float(np.abs(found["bertie"] - found["transformers"]).max())
    assert difference < 0.05, difference
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number, turn in enumerate(turns):
        names = list(ways)[:: 1 if number % 2 else -1]
        for name in names:

            def run(_: int, ask: Ask = ways[name], turn: list[str] = turn) -> torch.Tensor:
                return torch.from_numpy(ask(turn)).sum()

            run(0)  # every shape has its first time
            seconds[name].append(time_turn(run, range(1), GPU))
    return {
        "texts_per_s": {name: round(size / median(taken)) for name, taken in seconds.items()},
        "bertie_is_times_as_fast": compare(seconds["transformers"], seconds["bertie"]),
        "largest_difference": difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="directory of MiniLM")
    parser.add_argument("--data", type=Path, required=True, help="folder of SST-2 and MRPC")
    parser.add_argument("--sizes", nargs="+", default=["minilm", "base"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--texts", type=int, default=512, help="of a turn")
    options = parser.parse_args()
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "texts_a_turn": options.texts}
    with TemporaryDirectory() as folder:
        for size in options.sizes:
            directory = write_model(size, options.model, Path(folder))
            for name, column in COLUMNS.items():
                texts = read_column(options.data / name / "train.tsv", column)
                result[f"{size} {name}"] = measure(directory, texts, options)
                print(size, name, result[f"{size} {name}"], flush=True)
    about = machine.describe("torch", "transformers", "numpy")
    print("saved", machine.save("infer-cuda", about, result))


if __name__ == "__main__":
    main()
