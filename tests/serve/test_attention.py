"""Attention that is shown is what transformers computes."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertie
from bertie.errors import UserError
from bertie.serve.attention import look_verb
from bertie.serve.refusals import Refused
from tests.checkpoint.theirs import open_theirs
from tests.infer.models import SENTENCES, make_directory


def test_equals_the_attention_of_transformers(tmp_path: Path) -> None:
    directory = make_directory(tmp_path)
    engine = bertie.load(directory, device="cpu")
    theirs = open_theirs("BertForMaskedLM", directory)
    theirs.set_attn_implementation("eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    for text in (*SENTENCES, ""):
        encoded = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            wanted = theirs(**encoded, output_attentions=True).attentions
        for layer in (1, 2, -1, -2):
            found = look_verb(engine, layer).one(text)
            assert found.layer == (layer if layer > 0 else 3 + layer)
            ids = encoded["input_ids"][0].tolist()
            assert list(found.tokens) == tokenizer.convert_ids_to_tokens(ids)
            np.testing.assert_allclose(found.heads, wanted[found.layer - 1][0], atol=1e-5)


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    engine = bertie.load(make_directory(tmp_path), device="cpu")
    for layer in (0, 3, -3):
        with pytest.raises(UserError, match=f"no layer {layer}: the model has 1 to 2, or -1 to -2"):
            look_verb(engine, layer)
    with pytest.raises(Refused, match="pieces; the limit is 40 for attention") as refused:
        look_verb(engine, 1).one(" ".join(SENTENCES))
    assert refused.value.status == 413
