"""The model directory: round trips, new heads, what is refused, and writing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertie.checkpoint.card import TaskCard
from bertie.checkpoint.model_dir import copy_model, open_model, read_config, save_model
from bertie.errors import UserError
from bertie.model.heads import HEADS
from tests.checkpoint.directories import PLAIN, TINY, assert_same, make, opens_the_same, refuses
from tests.model import tiny

# --- round trips ---


@pytest.mark.parametrize(
    "heads", [(), ("masked_lm", "next_sentence"), *((head,) for head in PLAIN)], ids=str
)
@pytest.mark.parametrize("shard_bytes", [10**9, 1000])
def test_what_is_written_is_opened(
    heads: tuple[str, ...], shard_bytes: int, tmp_path: Path
) -> None:
    model = make(*heads, num_labels=4)
    save_model(model, tmp_path / "model", shard_bytes=shard_bytes)
    opened = open_model(tmp_path / "model")
    assert_same(opened.model, model)
    assert not opened.model.training
    assert opened.notes == opened.fresh == ()
    assert read_config(tmp_path / "model") == TINY


@pytest.mark.parametrize("heads", [(), ("masked_lm",), ("sequence",), ("token",)], ids=str)
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_every_variant_is_opened_as_it_was_written(
    name: str, heads: tuple[str, ...], tmp_path: Path
) -> None:
    config = replace(tiny.VARIANTS[name], classifier_dropout=0.3)
    heads = tuple(head for head in HEADS if head in (*heads, *tiny.directed(config)))
    model = tiny.make(config, torch.float32, heads=heads, num_labels=4)
    save_model(model, tmp_path / "model")
    opened = open_model(tmp_path / "model")
    assert_same(opened.model, model)
    assert opened.notes == opened.fresh == ()
    assert len(set(opened.model.layers)) == config.num_layer_weights
    values = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    assert values["model_type"] == ("albert" if name == "albert" else "bertie")
    save_model(opened.model, tmp_path / "model")  # and once more
    assert_same(open_model(tmp_path / "model").model, model)


def test_a_new_lstm_goes_on_top_and_comes_off(tmp_path: Path) -> None:
    save_model(make("masked_lm"), tmp_path / "plain")
    rng = torch.Generator().manual_seed(3)
    tall = open_model(
        tmp_path / "plain", heads=("token",), num_labels=3, bilstm_layers=2, generator=rng
    )
    assert set(tall.fresh) == {"bilstm", "token"}
    save_model(tall.model, tmp_path / "tall")
    again = open_model(tmp_path / "tall", bilstm_layers=2)
    assert_same(again.model, tall.model)
    assert again.fresh == ()
    assert open_model(tmp_path / "tall", bilstm_layers=1).fresh == ("bilstm",)
    low = open_model(tmp_path / "tall", bilstm_layers=0)
    assert low.fresh == ()
    assert low.model.config == TINY


def test_an_encoder_without_pooler_stays_without(tmp_path: Path) -> None:
    save_model(make(has_pooler=False), tmp_path / "model")
    assert open_model(tmp_path / "model").model.pooler is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_precision_is_kept_on_disk_and_chosen_on_opening(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    save_model(make("masked_lm").to(dtype), tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {dtype}
    assert {p.dtype for p in open_model(tmp_path / "model").model.parameters()} == {torch.float32}
    again = open_model(tmp_path / "model", dtype=dtype).model
    assert_same(again, make("masked_lm").to(dtype))


def test_tokenizer_files_come_along_unchanged(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    texts = {
        "vocab.txt": "".join(f"piece{n}\n" for n in range(36)) + "\u2028\n",  # one line, not two
        "tokenizer_config.json": '{"do_lower_case":   false}',
        "special_tokens_map.json": "{}",
        "README.md": "not a tokenizer",
    }
    for name, text in texts.items():
        (source / name).write_text(text, encoding="utf-8", newline="")
    save_model(make(), tmp_path / "model", tokenizer_from=source)
    del texts["README.md"]
    for name, text in texts.items():
        assert (tmp_path / "model" / name).read_text(encoding="utf-8") == text
    assert not (tmp_path / "model" / "README.md").exists()


def test_the_files_can_be_read_by_others(tmp_path: Path) -> None:
    save_model(make(), tmp_path / "model")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode & 0o777}


# --- new heads on an old encoder ---


def test_a_new_head_is_made_and_the_rest_is_kept(saved: Path) -> None:
    rng = torch.Generator().manual_seed(1)
    opened = open_model(saved, heads=("sequence",), num_labels=3, generator=rng)
    assert opened.fresh == ("sequence",)
    assert opened.card is None
    old, new = make("masked_lm", "next_sentence").state_dict(), opened.model.state_dict()
    kept = [name for name in old if name.split(".")[0] in ("embeddings", "layers", "pooler")]
    assert all(torch.equal(old[name], new[name]) for name in kept)
    assert set(new) - set(kept) == {"sequence.classifier.weight", "sequence.classifier.bias"}
    assert new["sequence.classifier.weight"].shape == (3, 12)
    assert 0 < new["sequence.classifier.weight"].abs().max() <= 0.1
    assert all(not parameter.is_meta for parameter in opened.model.parameters())


def test_a_head_with_other_labels_is_new_and_with_the_same_is_kept(tmp_path: Path) -> None:
    model = make("sequence", num_labels=3)
    save_model(model, tmp_path / "model", card=TaskCard(head="sequence", labels=("a", "b", "c")))
    other = open_model(tmp_path / "model", heads=("sequence",), num_labels=2)
    assert other.fresh == ("sequence",)
    assert other.card is None
    same = open_model(tmp_path / "model", heads=("sequence",), num_labels=3)
    assert same.fresh == ()
    assert_same(same.model, model)


def test_a_missing_pooler_is_new_where_a_head_needs_one(tmp_path: Path) -> None:
    save_model(make("masked_lm", has_pooler=False), tmp_path / "model")
    opened = open_model(tmp_path / "model", heads=("choice", "masked_lm"))
    assert opened.fresh == ("pooler", "choice")
    assert opened.model.heads == ("choice", "masked_lm")


def test_a_new_head_needs_its_number_of_labels(saved: Path) -> None:
    with pytest.raises(UserError, match="token would be new; say how many labels it has"):
        open_model(saved, heads=("token",))


# --- what is refused ---


def test_truncated_weights_are_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refuses(saved, r"model.safetensors is not a safetensors file, damaged or cut short")


@pytest.mark.parametrize("kind", ["spiece.model", "tokenizer.json"])
def test_sentence_pieces_are_refused_with_the_reason(kind: str, saved: Path) -> None:
    (saved / "vocab.txt").unlink(missing_ok=True)
    (saved / kind).write_text('{"model": {"type": "Unigram", "vocab": [["a", -1.0]]}}')
    refuses(saved, r"is of SentencePiece, .* take a model with a vocab.txt")


@pytest.mark.parametrize("num_lines", [36, 38])
def test_a_vocabulary_of_another_size_is_refused(num_lines: int, saved: Path) -> None:
    (saved / "vocab.txt").write_text("".join(f"piece{n}\n" for n in range(num_lines)))
    refuses(saved, rf"vocab.txt has {num_lines} pieces, the embedding has 37 rows")


def test_a_whole_tokenizer_of_another_size_is_refused(saved: Path) -> None:
    vocab = {f"piece{n}": n for n in range(36)}
    tokenizer = {"model": {"vocab": vocab}, "added_tokens": [{"id": 36}, {"id": 0}]}
    (saved / "tokenizer.json").write_text(json.dumps(tokenizer))
    opens_the_same(saved)
    (saved / "tokenizer.json").write_text(json.dumps(tokenizer | {"added_tokens": []}))
    refuses(saved, r"tokenizer.json has 36 pieces, the embedding has 37 rows")
    (saved / "tokenizer.json").write_text("{}")
    refuses(saved, r"tokenizer.json is not a BERT tokenizer")


@pytest.mark.parametrize("text", ["[" * 100_000, f'{{"hidden_size": {"9" * 5_000}}}'])
def test_json_beyond_what_python_reads_is_refused(text: str, saved: Path) -> None:
    (saved / "config.json").write_text(text)
    refuses(saved, "config.json is not valid JSON")


def test_no_directory_and_no_config_are_told(tmp_path: Path) -> None:
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "bert_config.json").touch()
    refuses(tmp_path / "google", r"Google's checkpoints; .* bertie import .*google --out NEW")
    refuses(tmp_path / "nowhere", r"no file .*nowhere/config.json; a model directory has")
    save_model(make("sequence"), tmp_path / "run" / "model")
    refuses(tmp_path / "run", r"no file .*run/config.json; the model is in .*run/model$")
    (tmp_path / "config.json").write_text("{")
    refuses(tmp_path, r"config.json is not valid JSON")


# --- writing ---


def test_writing_that_fails_leaves_the_old_model_whole(saved: Path) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    wrong = saved.parent / "wrong"
    wrong.mkdir()
    (wrong / "vocab.txt").write_text("one\n")
    with pytest.raises(UserError, match=r"wrong/vocab.txt has 1 pieces, the embedding has 37"):
        save_model(make(), saved, tokenizer_from=wrong)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert sorted(path.name for path in saved.parent.iterdir()) == ["model", "vocab.txt", "wrong"]


def test_a_model_is_replaced_whole(saved: Path) -> None:
    model = open_model(saved).model  # its parameters are mapped from the file that is replaced
    save_model(make("span"), saved, shard_bytes=1000)
    assert not (saved / "model.safetensors").exists()
    assert not (saved / "vocab.txt").exists()
    assert open_model(saved).model.heads == ("span",)
    assert_same(model, make("masked_lm", "next_sentence"))


@pytest.mark.parametrize("form", ["safetensors", "zip", "legacy"])
def test_training_changes_the_model_and_not_the_file(form: str, saved: Path) -> None:
    if form != "safetensors":
        weights = load_file(saved / "model.safetensors")
        (saved / "model.safetensors").unlink()
        is_zip = form == "zip"
        torch.save(weights, saved / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    model = open_model(saved).model
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.requires_grad
            parameter.add_(1)
    opens_the_same(saved)


def test_a_folder_with_other_things_is_not_written_over(saved: Path) -> None:
    (saved / "thesis.md").touch()
    with pytest.raises(UserError, match=r"holds thesis.md, which is not part of a model directory"):
        save_model(make(), saved)
    assert (saved / "thesis.md").exists()
    with pytest.raises(UserError, match="is a file"):
        save_model(make(), saved / "thesis.md")


def test_a_copy_replaces_a_model_and_nothing_else(saved: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for _ in range(2):
        copy_model(saved, copy)
    assert {p.name for p in copy.iterdir()} == {p.name for p in saved.iterdir()}
    (copy / "my_eval").mkdir()
    with pytest.raises(UserError, match="holds my_eval, which is not part of a model directory"):
        copy_model(saved, copy)
    assert (copy / "my_eval").is_dir()


def test_a_copy_replaces_another_of_its_kind(tmp_path: Path) -> None:
    """A head on features has files of other names."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "head.json").write_text(name, encoding="utf-8")
    copy_model(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two" / "head.json").read_text(encoding="utf-8") == "one"
