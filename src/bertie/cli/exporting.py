"""The verbs that take a model elsewhere, or look into it: info, import, export, inspect."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertie.cli.asking import take_model, told_in_lines
from bertie.cli.show import show_table
from bertie.embedded import NAME, find_model

if TYPE_CHECKING:
    from bertie.checkpoint.model_dir import Storage
    from bertie.export.check import Difference

Casing = Annotated[
    bool | None,
    typer.Option("--uncased/--cased", help="Only for a directory that does not say it itself."),
]


def info(
    target: Annotated[
        str,
        typer.Argument(help="A size, layers/hidden/heads, a model directory, a store."),
    ],
    batch: Annotated[int, typer.Option(min=1, help="Sequences in a step.")] = 32,
    length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a sequence; default: 128, or what the model reads."),
    ] = None,
) -> None:
    """Tell what a model is and costs (parameters, FLOPs, memory), or what a store holds.

    ```
    bertie info base                       # or tiny, mini, small, medium, large
    bertie info 6/384/12 --batch 256 --length 512
    bertie info my_run/model
    bertie info my_store --length 512      # counts, lengths, masked instances
    ```
    """
    from bertie.info import describe

    named = str(find_model(target)) if target == NAME else target
    for facts in describe(named, batch_size=batch, length=length):
        show_table(facts.columns, facts.rows, title=facts.title, right=facts.right)
        for note in facts.notes:
            print(f"{note}\n")


def import_(
    source: Annotated[Path, typer.Argument(help="Directory of the checkpoint; or `embedded`.")],
    out: Annotated[Path, typer.Option(help="The model directory to write, a new folder.")],
    lower_case: Casing = None,
    gelu: Annotated[
        str | None,
        typer.Option(help="For a TensorFlow checkpoint: erf (the default) or tanh."),
    ] = None,
    storage: Annotated[
        str, typer.Option(help="float, or int8 (a quarter of the size, opened by bertie alone).")
    ] = "float",
) -> None:
    """Turn a BERT checkpoint of any kind into a model directory.

    It reads Hugging Face's checkpoints (safetensors, or pytorch_model.bin of any age, in one file
    or many) and Google's original ones (bert_config.json, vocab.txt, bert_model.ckpt.*), without
    TensorFlow.

    ```
    bertie import bert-base-cased/ --out models/base
    bertie import uncased_L-12_H-768_A-12/ --out models/base --uncased
    ```

    In eight bits, and back to what transformers opens:

    ```
    bertie import my_run/model --out small --storage int8
    bertie import small --out plain
    ```
    """
    from bertie.checkpoint.importing import import_model

    kind: Storage = storage  # type: ignore[assignment]  # checked by what writes it
    opened = import_model(find_model(source), out, lower_case=lower_case, gelu=gelu, storage=kind)
    for note in opened.notes:
        print(f"bertie: {note}", file=sys.stderr)
    heads = ", ".join(opened.model.heads) or "none"
    num_parameters = sum(parameter.numel() for parameter in opened.model.parameters())
    print(f"{out}: {num_parameters:,} parameters; heads: {heads}")


@told_in_lines()
def export(
    to: Annotated[str, typer.Option(help="onnx, torch or hf.")],
    out: Annotated[Path, typer.Option(help="The folder to write, a new one.")],
    model: Annotated[
        Path | None, typer.Argument(help="A model directory; default: the one that ships.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="fp32, bf16 (torch, hf) or int8 (onnx).")] = "fp32",
    dev: Annotated[
        Path | None, typer.Option(help="A file with labels, to show how much the score changes.")
    ] = None,
) -> None:
    """Write a model as other programs take it, checked against bertie's own answers.

    **onnx** is model.onnx: input_ids, attention_mask and token_type_ids of any number and length
    in, the head's logits out; without a head, vectors of texts (embedding) and tokens (hidden).
    **torch** is the same as model.pt2, for torch.export.load. **hf** is what transformers opens.

    In int8 every token has a scale of its own, so texts do not change their neighbours. On an x86
    processor without VNNI, onnxruntime cuts off the few sums of two products that are beyond 16
    bits: export with --dev there, to see what it costs.

    ```
    bertie export sentiment/model --to onnx --out exported
    bertie export sentiment/model --to onnx --out i8 --dtype int8 --dev dev.tsv
    bertie export my_run/model --to hf --out for-transformers --dtype bf16
    ```
    """
    from bertie.export.writing import export_model

    made = export_model(find_model(model), out, form=to, precision=dtype, dev=dev)
    print(f"{out}: {made.num_bytes / 1e6:.1f} MB")
    show_difference(made.difference, dtype)
    if made.scores is not None:
        change = made.scores.export - made.scores.engine
        print(
            f"{made.scores.metric} on {dev}: {made.scores.engine:.4f} in fp32, "
            f"{made.scores.export:.4f} exported ({100 * change:+.2f} points)"
        )


def show_difference(found: "Difference", dtype: str) -> None:
    from bertie.export.check import MAX_ERROR_RATIO, TOLERANCES

    told = (
        f"largest difference from the engine in {dtype} on {found.num_sequences} random texts: "
        f"{found.largest:.1e} of {found.scale:.2g}, a share of {found.share:.1e}"
    )
    if found.rounding is None:
        print(f"{told}; {TOLERANCES[dtype]:.0e} is allowed")
        return
    print(told)
    print(
        f"error of all {found.rounding.output} against fp32 (root mean square, as a share): "
        f"{found.rounding.export:.1e}, the engine's int8 {found.rounding.engine:.1e}; "
        f"{MAX_ERROR_RATIO:g} times that is allowed"
    )


@told_in_lines()
def inspect(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] TEXT",
            help="A sentence; it may have [MASK]. Before it, a model directory, if it is not the "
            "model that ships with bertie.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write, .html.")],
) -> None:
    """Write a page with what a model's heads look at, and its guesses after each layer.

    The page is one file that needs nothing else. What is guessed is each mask of the text, or each
    piece, masked in turn; a model without a masked LM head shows its attention alone.

    ```
    bertie inspect "The cat sat on the mat." --out cat.html
    bertie inspect my_run/model "Paris is the [MASK] of France." --out a.html
    ```
    """
    from bertie import load
    from bertie.report.inspection import Guessed, make_page
    from bertie.report.page import write_whole

    model, (text,) = take_model(words, 1, "a text")
    engine = load(model)
    seen = engine.attention(text)
    has_guesses = "masked_lm" in engine.model.heads
    found = engine.guess_layers(text, top=1) if has_guesses else []
    guesses = [Guessed(one.piece, [best[0] for best in one.layers]) for one in found]
    mask = engine.tokenizer.config.mask_token
    made = make_page(text, str(model), seen.pieces, seen.weights, guesses, mask=mask)
    write_whole(out, made)
    print(f"{out}: {seen.weights.shape[0]} layers of {seen.weights.shape[1]} heads")
