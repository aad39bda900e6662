"""Checkpoints of every kind become model directories that compute the same."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bertie.checkpoint.importing import import_model, open_google
from bertie.checkpoint.model_dir import POOLING, open_model, save_model
from bertie.errors import UserError
from bertie.model.config import ModelConfig
from bertie.text.tokenizer import Tokenizer
from tests.checkpoint.tf_writer import write_checkpoint
from tests.checkpoint.theirs import (
    HEADS_OF,
    Theirs,
    ask_ours,
    ask_theirs,
    compare,
    make,
    open_theirs,
    texts,
)

Record = Callable[[str, object], None]
GOOGLE = {
    "vocab_size": 83,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 23,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}


def write_google(directory: Path, name: str = "BertForPreTraining") -> Theirs:
    """A TensorFlow checkpoint with the weights of a model of theirs, by Google's names."""
    theirs = make(name)
    names = {
        "bert.embeddings.word_embeddings.weight": "bert/embeddings/word_embeddings",
        "bert.embeddings.position_embeddings.weight": "bert/embeddings/position_embeddings",
        "bert.embeddings.token_type_embeddings.weight": "bert/embeddings/token_type_embeddings",
        "cls.predictions.bias": "cls/predictions/output_bias",
        "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
        "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
        "classifier.weight": "output_weights",
        "classifier.bias": "output_bias",
    }
    variables = {"global_step": np.array(7, np.int64)}
    for theirs_name, weight in theirs.state_dict().items():
        if "decoder" in theirs_name or "position_ids" in theirs_name:
            continue
        numbers = weight.numpy()
        if theirs_name not in names:
            name = theirs_name.replace("layer.", "layer_").replace(".", "/")
            if "LayerNorm" in name:
                name = name.replace("/weight", "/gamma").replace("/bias", "/beta")
            elif name.endswith("/weight"):
                name, numbers = name.replace("/weight", "/kernel"), numbers.T
            names[theirs_name] = name
        variables[names[theirs_name]] = np.ascontiguousarray(numbers)
    directory.mkdir()
    write_checkpoint(directory / "bert_model.ckpt", variables, num_shards=2)
    (directory / "bert_config.json").write_text(json.dumps(GOOGLE))
    (directory / "vocab.txt").write_text("".join(f"piece{n}\n" for n in range(83)))
    return theirs


@pytest.mark.parametrize("name", ["BertForPreTraining", "BertForSequenceClassification"])
def test_googles_checkpoint_becomes_a_model_directory(
    name: str, tmp_path: Path, record_property: Record
) -> None:
    theirs = write_google(tmp_path / "google", name)
    import_model(tmp_path / "google", tmp_path / "model", lower_case=True)
    opened = open_model(tmp_path / "model")
    assert opened.model.heads == HEADS_OF[name]
    compare(ask_ours(opened.model, texts(83)), ask_theirs(theirs, texts(83)), record_property)
    again = open_theirs(name, tmp_path / "model")
    compare(ask_ours(opened.model, texts(83)), ask_theirs(again, texts(83)), record_property)
    settings = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    assert settings["do_lower_case"] is True
    assert settings["model_max_length"] == 23
    vocab = (tmp_path / "google" / "vocab.txt").read_bytes()
    assert (tmp_path / "model" / "vocab.txt").read_bytes() == vocab


@pytest.mark.parametrize("gelu", ["erf", "tanh"])
def test_googles_gelu_is_erf_unless_it_is_said_to_be_tanh(gelu: str, tmp_path: Path) -> None:
    write_google(tmp_path / "google")
    chosen = {"gelu": gelu} if gelu == "tanh" else {}
    import_model(tmp_path / "google", tmp_path / "model", lower_case=False, **chosen)  # type: ignore[arg-type]
    assert open_model(tmp_path / "model").model.config.gelu == gelu
    settings = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    assert settings["do_lower_case"] is False


@pytest.mark.parametrize("form", ["safetensors", "zip", "legacy", "sharded"])
def test_every_form_of_theirs_becomes_a_model_directory(
    form: str, tmp_path: Path, record_property: Record
) -> None:
    theirs, source = make("BertForMaskedLM"), tmp_path / "source"
    theirs.save_pretrained(source, max_shard_size="20KB" if form == "sharded" else "5GB")
    if form in ("zip", "legacy"):
        (source / "model.safetensors").unlink()
        torch.save(
            theirs.state_dict(),  # with the tied matrix twice
            source / "pytorch_model.bin",
            _use_new_zipfile_serialization=form == "zip",
        )
    assert (len(list(source.glob("model-*"))) > 1) == (form == "sharded")
    import_model(source, tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    model = open_model(tmp_path / "model").model
    compare(ask_ours(model, texts(83)), ask_theirs(theirs, texts(83)), record_property)


def test_how_vectors_are_made_comes_along(tmp_path: Path) -> None:
    """sentence-transformers' 1_Pooling decides what `embed` gives where nothing else is asked."""
    source, out = tmp_path / "source", tmp_path / "model"
    make("BertModel").save_pretrained(source)
    (source / POOLING).parent.mkdir()
    (source / POOLING).write_text('{"pooling_mode_cls_token": true}')
    (source / POOLING).with_name("notes.txt").touch()
    out.mkdir()  # empty: it may be there
    import_model(source, out)
    assert (out / POOLING).read_bytes() == (source / POOLING).read_bytes()
    assert [path.name for path in (out / POOLING).parent.iterdir()] == ["config.json"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    model = open_model(out).model
    save_model(model, out)  # other weights in its place: no word about their vectors
    assert not (out / POOLING).exists()


def test_casing_is_asked_for_and_never_guessed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    make("BertModel").save_pretrained(source)
    (source / "vocab.txt").write_text("".join(f"piece{n}\n" for n in range(83)))
    with pytest.raises(UserError, match=r"nothing in .* says whether .* cased; say so: --cased or"):
        import_model(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    (source / "tokenizer_config.json").write_text('{"mask_token": "<mask>"}')
    import_model(source, tmp_path / "one", lower_case=False)
    written = json.loads((tmp_path / "one" / "tokenizer_config.json").read_text())
    assert written["do_lower_case"] is False
    assert written["mask_token"] == "<mask>"


def test_tokens_added_beside_the_vocabulary_come_along(tmp_path: Path) -> None:
    source = tmp_path / "source"
    make("BertModel").save_pretrained(source)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    lines = specials + [f"piece{n}" for n in range(77)]
    (source / "vocab.txt").write_text("".join(f"{line}\n" for line in lines))
    (source / "added_tokens.json").write_text('{"[E1]": 82}')
    settings = {"do_lower_case": True, "additional_special_tokens": ["[E1]"]}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    import_model(source, tmp_path / "model")
    tokenizer = Tokenizer.load(tmp_path / "model")
    assert tokenizer.ids("piece0 [E1]").tolist()[-1] == 82 == len(tokenizer.pieces) - 1


def test_casing_that_is_known_is_kept(tmp_path: Path) -> None:
    source = tmp_path / "source"
    make("BertModel").save_pretrained(source)
    vocab = {f"piece{n}": n for n in range(83)}
    tokenizer = {
        "model": {"vocab": vocab},
        "added_tokens": [],
        "normalizer": {"type": "BertNormalizer", "lowercase": False},
    }
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=r"the tokenizer files in .* say cased; leave the option"):
        import_model(source, tmp_path / "model", lower_case=True)
    import_model(source, tmp_path / "model", lower_case=False)
    copied = (tmp_path / "model" / "tokenizer.json").read_bytes()
    assert copied == (source / "tokenizer.json").read_bytes()
    assert not (tmp_path / "model" / "tokenizer_config.json").exists()
    (source / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    import_model(source, tmp_path / "two", lower_case=True)


def test_their_files_count_where_a_directory_has_both(tmp_path: Path) -> None:
    write_google(tmp_path / "both")
    make("BertForTokenClassification").save_pretrained(tmp_path / "both")
    opened = import_model(tmp_path / "both", tmp_path / "model", lower_case=True)
    assert opened.model.heads == ("token",)


def test_wrong_sources_are_told(tmp_path: Path) -> None:
    def refused(source: Path, message: str, **options: object) -> None:
        with pytest.raises(UserError, match=message):
            import_model(source, tmp_path / "model", **options)  # type: ignore[arg-type]
        assert not (tmp_path / "model").exists()

    refused(
        tmp_path / "nowhere", r"no directory .*nowhere; name one with config.json or bert_config"
    )
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", r"no file .*config.json; a model directory has")
    write_google(tmp_path / "google")
    refused(tmp_path / "google", "nothing in .*google says whether its vocabulary is cased")
    shutil.copy(tmp_path / "google" / "bert_model.ckpt.index", tmp_path / "empty")
    refused(tmp_path / "empty", r"no file .*bert_config.json beside the TensorFlow checkpoint")
    make("BertModel").save_pretrained(tmp_path / "theirs")
    refused(tmp_path / "theirs", "config.json says which GELU it is", gelu="tanh")


def test_a_config_of_another_model_is_told(tmp_path: Path) -> None:
    write_google(tmp_path / "google")
    path = tmp_path / "google" / "bert_config.json"
    for change, message in {
        "intermediate_size": "layers.0.ffn.up.weight is",
        "max_position_embeddings": "embeddings.position.weight is",
        "num_hidden_layers": "which a BERT of 40 layers has",
        "vocab_size": r"vocab.txt has 83 pieces, the embedding has 40 rows",
    }.items():
        path.write_text(json.dumps(GOOGLE | {change: 40}))
        with pytest.raises(UserError, match=message):
            import_model(tmp_path / "google", tmp_path / "model", lower_case=True)


def test_layers_without_end_are_told(tmp_path: Path) -> None:
    write_google(tmp_path / "google")
    path = tmp_path / "google" / "bert_config.json"
    path.write_text(json.dumps(GOOGLE | {"num_hidden_layers": 10**6}))
    with pytest.raises(UserError, match="tells of 1,000,000 layers, and the file has"):
        import_model(tmp_path / "google", tmp_path / "model", lower_case=True)


def test_an_existing_folder_is_not_written_over(tmp_path: Path) -> None:
    make("BertModel").save_pretrained(tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "model")
    with pytest.raises(UserError, match="model exists already; name a new folder with --out"):
        import_model(tmp_path / "theirs", tmp_path / "model")


# --- real ones ---


def test_the_checkpoint_of_googles_own_code_is_imported(shared: Path, tmp_path: Path) -> None:
    source = shared / "weights" / "tf" / "keras-bert"
    import_model(source, tmp_path / "model", lower_case=True)
    model = open_model(tmp_path / "model").model
    assert model.heads == ("masked_lm", "next_sentence")
    assert model.config == ModelConfig(
        vocab_size=15,
        hidden_size=4,
        num_layers=2,
        num_heads=4,
        ffn_size=16,
        max_positions=16,
    )
    values = np.load(source / "values.npz")
    kernel = values["bert|encoder|layer_1|intermediate|dense|kernel"]
    written = model.layers[1].ffn.up.weight.detach().numpy()  # type: ignore[union-attr]
    np.testing.assert_array_equal(written, kernel.T)
    ours, theirs = (
        ask_ours(model, texts(15, (5, 1, 16))),
        open_theirs("BertForPreTraining", tmp_path / "model"),
    )
    compare(ours, ask_theirs(theirs, texts(15, (5, 1, 16))), lambda name, value: None)


def test_an_index_without_its_data_is_told(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file .*bert_model.ckpt.data-00000-of-00001"):
        import_model(shared / "weights" / "tf" / "chinese-index-only", tmp_path / "model")


def test_factorised_embeddings_are_told(weights: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="embedding_size 128 differs from hidden_size 312"):
        import_model(weights("simbert-tf"), tmp_path / "model", lower_case=True)


@pytest.mark.parametrize(
    ("name", "lower_case"),
    [("minilm", None), ("m3e-small", None), ("rxnfp-bert_ft", False)],
)
def test_real_checkpoints_are_imported(
    name: str, lower_case: bool | None, weights: Callable[[str], Path], tmp_path: Path
) -> None:
    from bertie.text.tokenizer import Tokenizer

    import_model(weights(name), tmp_path / "model", lower_case=lower_case)
    opened, source = open_model(tmp_path / "model"), open_model(weights(name))
    for one, other in zip(opened.model.parameters(), source.model.parameters(), strict=True):
        assert torch.equal(one, other)
    tokenizer = Tokenizer.load(tmp_path / "model")
    assert len(tokenizer.pieces) == opened.model.config.vocab_size
    assert tokenizer.config.lower_case == (name == "minilm")


def test_google_is_opened_without_writing(tmp_path: Path) -> None:
    write_google(tmp_path / "google")
    assert open_google(tmp_path / "google", "tanh").model.config.gelu == "tanh"
