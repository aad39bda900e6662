"""The report of a run survives whatever a run leaves behind, and says what counts."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertie.errors import UserError
from bertie.report.pretraining import write_pretraining_report
from tests.report.checker import HOSTILE, Checker, check_page


def training(step: int, **more: object) -> dict[str, object]:
    means = {"mlm_loss": 7 - step / 100, "mlm_accuracy": 0.1, "nsp_loss": 0.6, "nsp_accuracy": 0.6}
    line = {"step": step, "tokens": 1000 * step, **means, "rate": 1e-4, "norm": 1.5, "skipped": 0}
    return {**line, "seconds": step / 10, "tokens_per_s": 10_000, **more}


def held_out(step: int, loss: float) -> dict[str, object]:
    figures = {"mask_loss": loss, "mask_accuracy": 0.321, "kept_loss": 0.5, "kept_accuracy": 0.9}
    figures |= {"random_loss": 5.25, "random_accuracy": 0.2, "nsp_accuracy": 0.875}
    return {"step": step, "tokens": 1000 * step, "seconds": step / 10, "held_out": figures}


def report(run: Path, lines: list[object], facts: object = None, tail: str = "") -> Checker:
    run.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(line)}\n" for line in lines) + tail
    (run / "metrics.jsonl").write_text(text, encoding="utf-8")
    if facts is not None:
        (run / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    path = write_pretraining_report(run)
    assert path == run / "report.html"
    ElementTree.fromstring((run / "curves.svg").read_text(encoding="utf-8"))
    return check_page(path.read_text(encoding="utf-8"))


def test_the_headline_is_the_mask_only_loss(tmp_path: Path) -> None:
    lines = [training(10), held_out(10, 6.5), training(20), held_out(20, 4.125)]
    facts = {"unigram_entropy": 7.25, "recipe": {"optim": {"peak": 5e-4}}, "commit": "abc123"}
    texts = report(tmp_path / "run", lines, facts).texts
    assert (
        "Held-out loss on [MASK] positions: 4.125 nats, 3.125 below the unigram entropy of 7.250. "
        "Perplexity 61.9."
    ) in texts
    for shown in ("32.1%", "5.250", "87.5%", "recipe.optim.peak", "0.0005", "abc123", "20k"):
        assert shown in texts
    assert "unigram entropy 7.25" in texts


def test_a_run_that_learned_nothing_is_told_so(tmp_path: Path) -> None:
    texts = report(tmp_path, [training(10), held_out(10, 7.5)], {"unigram_entropy": 7.25}).texts
    assert any("no more than how frequent words are" in text for text in texts)
    texts = report(tmp_path, [training(10, skipped=3)]).texts
    assert any("not finite: 3" in text for text in texts)
    assert any("There is no held-out figure" in text for text in texts)


def test_a_run_of_pairs_alone_is_known_by_them(tmp_path: Path) -> None:
    words = {"mlm_loss", "mlm_accuracy"}
    lines: list[object] = [{k: v for k, v in training(10).items() if k not in words}]
    texts = report(tmp_path, lines, {"unigram_entropy": 7.25}).texts
    assert "Training loss of next sentence: 0.600 nats. There is no held-out figure." in texts
    figures = {"nsp_loss": 0.25, "nsp_accuracy": 0.875}
    lines.append({"step": 10, "tokens": 9, "seconds": 1, "held_out": figures})
    texts = report(tmp_path, lines, {"unigram_entropy": 7.25}).texts
    assert "Held-out loss of next sentence: 0.250 nats; 87.5% are right, by chance 50%." in texts
    assert "Loss of next sentence (nats)" in texts and "Accuracy of next sentence" in texts
    assert not any("Masked LM" in text or "[MASK]" in text for text in texts)
    assert not any("unigram entropy" in text for text in texts)


def test_a_language_model_is_known_by_its_next_tokens(tmp_path: Path) -> None:
    line = {"step": 10, "tokens": 9, "seconds": 1, "rate": 0.1, "lm_loss": 5.0, "skipped": 0}
    texts = report(tmp_path, [line]).texts
    assert "Training loss of next tokens: 5.000 nats. There is no held-out figure." in texts
    assert not any("Masked LM" in text for text in texts)
    held = {"step": 10, "tokens": 9, "seconds": 1, "held_out": {"lm_loss": 4.5}}
    texts = report(tmp_path, [line, held], {"unigram_entropy": 7.25}).texts
    assert any(text.startswith("Held-out loss of next tokens: 4.500 nats, 2.750") for text in texts)
    assert not any("[MASK]" in text for text in texts)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [training(10)],
        [held_out(10, 5.0)],
        [training(10, mlm_loss=math.nan, norm=math.inf), training(20, norm=0.0)],
        [held_out(10, math.nan)],
        [{"step": 5}, {"step": "x"}, [1], 7, None, {"other": 1}],
        [
            training(10, sop_accuracy=0.5, mfu=0.4, surprise={"a": [1]}),
            {"step": 1, "held_out": None},
        ],
        [training(step) for step in range(1, 3000)],
        [training(30), training(10), training(10)],
    ],
)
def test_whatever_a_run_left_there_is_a_report(tmp_path: Path, lines: list[object]) -> None:
    report(tmp_path, lines, tail='{"step": 99, "tok')
    report(tmp_path, lines, facts=[1, 2])
    (tmp_path / "run.json").write_text('{"cut')
    report(tmp_path, lines)


WORD = st.text(max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | WORD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORD, inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["step", "tokens", "mlm_loss", "rate", "norm", "held_out", "mask_loss"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(lines=st.lists(st.dictionaries(KEYS, JSON), max_size=3), facts=JSON)
def test_values_of_any_kind(tmp_path: Path, lines: list[object], facts: object) -> None:
    report(tmp_path, [{"step": 1, "mlm_loss": 2}, *lines], facts)


def test_hostile_settings_stay_texts(tmp_path: Path) -> None:
    def facts(texts: list[str]) -> dict[str, object]:
        return {"command": texts, **{f"{n}{t}": {t: t} for n, t in enumerate(texts)}}

    bad = report(tmp_path / "bad", [training(10)], facts(HOSTILE))
    good = report(tmp_path / "good", [training(10)], facts([f"x{n}" for n in range(len(HOSTILE))]))
    assert bad.num_tags == good.num_tags
    assert HOSTILE[0] in bad.texts


def test_the_command_is_as_one_types_it(tmp_path: Path) -> None:
    words = ["/x/bertie/__main__.py", "pretrain", "tiny-cpu", "--set", "train.budget=5 minutes"]
    shown = "bertie pretrain tiny-cpu --set 'train.budget=5 minutes'"
    assert shown in report(tmp_path, [training(10)], {"command": words}).texts
    assert "make it" in report(tmp_path, [training(10)], {"command": "make it"}).texts


def test_a_missing_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file .*metrics\.jsonl"):
        write_pretraining_report(tmp_path)
