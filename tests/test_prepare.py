"""From text to a store: the same bytes whatever the workers, whatever was killed on the way."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bertie.config import read_recipe
from bertie.data.blocks import OWN_FOLDER, UNSEEN
from bertie.data.store import Store, open_store
from bertie.errors import UserError
from bertie.info import describe
from bertie.prepare import PrepareRecipe, prepare
from bertie.text.files import TokenizerConfig
from bertie.text.tokenizer import Tokenizer
from tests.text.reference import SPECIALS
from tests.text.test_processes import is_running, wait_for

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?中文字词语"


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocab")
    pieces = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS[:36]), "the", "word"]
    Tokenizer(pieces).save(folder)
    return folder


def awkward_texts(num_documents: int = 300) -> list[str]:
    noise = random.Random(3)
    texts = []
    for number in range(num_documents):
        sentences = [
            " ".join(
                noise.choices(["the", "word", f"w{number}", "xyz", "q"], k=noise.randint(1, 9))
            )
            for _ in range(noise.choice([1, 1, 2, 5, 30]))
        ]
        texts.append(". ".join(s.capitalize() for s in sentences) + ".")
    return [*texts, "", " \0 ", texts[5], texts[5], "one", "中文词语。中文字！", "the " * 5000]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    texts = awkward_texts()
    for part in range(4):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[part::4]]
        (folder / f"{part}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def recipe(*sets: str) -> PrepareRecipe:
    return read_recipe(PrepareRecipe, None, ["corpus.unit_bytes=3000", *sets])


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def decoded(store: Store) -> list[str]:
    tokenizer = store.load_tokenizer()
    bounds = store.sentences[store.documents].tolist()
    return [tokenizer.decode(store.ids[first:last]) for first, last in pairwise(bounds)]


def test_documents_come_in_order_once_and_the_held_out_ones_apart(
    corpus: Path, vocab: Path, tmp_path: Path
) -> None:
    made = prepare([corpus], vocab, tmp_path / "s", recipe("corpus.held_out_percent=20"), workers=1)
    train, held = open_store(tmp_path / "s"), open_store(tmp_path / "s" / "held_out")
    assert (train.manifest, held.manifest) == (made.train, made.held_out)
    tokenizer = Tokenizer.load(vocab)
    files = sorted(corpus.iterdir())
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [text for line in lines if (text := json.loads(line)["text"])]
    wanted = [tokenizer.decode(tokenizer.ids(text)) for text in dict.fromkeys(texts)]
    kept, apart = decoded(train), decoded(held)
    assert sorted(kept + apart) == sorted(text for text in wanted if text)
    assert [text for text in wanted if text in set(kept)] == kept
    assert 30 < len(apart) < 100
    statistics = made.train.statistics
    assert statistics["documents_read"] == len(texts)
    assert statistics["documents_duplicate"] == len(texts) - len(set(texts)) >= 2
    assert statistics["documents_empty"] >= 1
    assert not (tmp_path / "s.draft").exists()


def test_workers_change_no_byte(corpus: Path, vocab: Path, tmp_path: Path) -> None:
    for workers in (1, 2, 3):
        prepare([corpus], vocab, tmp_path / str(workers), recipe(), workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")


def test_word_starts_are_the_first_pieces(corpus: Path, vocab: Path, tmp_path: Path) -> None:
    prepare([corpus], vocab, tmp_path / "s", recipe(), workers=1)
    store = open_store(tmp_path / "s")
    pieces = store.load_tokenizer().tokens(store.ids.tolist())
    bits = np.unpackbits(store.words, count=len(store.ids)).astype(bool)
    assert bits.tolist() == [not piece.startswith("##") for piece in pieces]


def test_chinese_words_begin_at_the_segmenters_boundaries(vocab: Path, tmp_path: Path) -> None:
    pytest.importorskip("jieba")
    (tmp_path / "a.txt").write_text("中文词语 word。文字", encoding="utf-8")
    settings = recipe("prepare.segmenter=jieba", "corpus.held_out_percent=0")
    prepare([tmp_path / "a.txt"], vocab, tmp_path / "s", settings, workers=1)
    store = open_store(tmp_path / "s")
    pieces = store.load_tokenizer().tokens(store.ids.tolist())
    bits = np.unpackbits(store.words, count=len(store.ids)).tolist()
    words: list[str] = []
    for piece, bit in zip(pieces, bits, strict=True):
        if bit:
            words.append(piece)
        else:
            words[-1] += piece
    assert "".join(words).replace("[UNK]", "。") == "中文词语word。文字"
    assert "中文" in words and "文字" in words


@pytest.mark.parametrize("segmenter", ["none", "jieba"])
def test_text_that_spells_special_tokens_is_text(tmp_path: Path, segmenter: str) -> None:
    if segmenter == "jieba":
        pytest.importorskip("jieba")
    pieces = [*SPECIALS, "the", "[", "]", "sep", "cls", "pad", "mask", "中", "文", "[E1]"]
    tokenizer = Tokenizer(pieces, TokenizerConfig(extra_tokens=("[E1]",)))
    tokenizer.save(tmp_path / "vocab")
    text = "the [SEP] [MASK]the[CLS] [PAD] 中文[SEP]龘中文 [UNK] [E1]"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    settings = recipe("corpus.held_out_percent=0", f"prepare.segmenter={segmenter}")
    prepare([tmp_path / "a.txt"], tmp_path / "vocab", tmp_path / "s", settings, workers=1)
    store = open_store(tmp_path / "s")
    spelled = "the [ sep ] [ mask ] the [ cls ] [ pad ] 中 文 [ sep ] [UNK] 中 文 [UNK] [E1]"
    assert " ".join(tokenizer.tokens(store.ids.tolist())) == spelled
    bits = np.unpackbits(store.words, count=len(store.ids)).tolist()
    starts = [piece for piece, bit in zip(spelled.split(), bits, strict=True) if not bit]
    assert starts == (["文", "文"] if segmenter == "jieba" else [])


def test_short_documents_and_duplicates_by_setting(vocab: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the word\n\nthe word\n\nthe word the word\n\nthe")
    zero = "corpus.held_out_percent=0"
    prepare([tmp_path / "a.txt"], vocab, tmp_path / "1", recipe(zero), workers=1)
    assert decoded(open_store(tmp_path / "1")) == ["the word", "the word the word", "the"]
    settings = recipe(zero, "prepare.deduplicate=false", "prepare.min_tokens=2")
    made = prepare([tmp_path / "a.txt"], vocab, tmp_path / "2", settings, workers=1)
    assert made.train.statistics["documents_duplicate"] == 0, "none was dropped"
    assert decoded(open_store(tmp_path / "2")) == ["the word", "the word", "the word the word"]


def start(corpus: Path, vocab: Path, out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "bertie", "prepare", str(corpus), "--vocab", str(vocab)),
            *("--out", str(out), "--workers", "2", "--set", "corpus.unit_bytes=3000"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"WORK": str(out)},
    )


def count_done(out: Path) -> int:
    return len(list(out.with_name(f"{out.name}.draft").glob("part-*.json")))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_at_any_moment_it_goes_on_to_the_same_store(
    corpus: Path, vocab: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """What is killed has made some parts; SIGTERM and SIGINT go to the parent alone."""
    prepare([corpus], vocab, tmp_path / "whole", recipe(), workers=1)
    out = tmp_path / "killed"
    num_kills = 0
    for num_more in (1, 3, 2):
        before = count_done(out)
        run = start(corpus, vocab, out)
        while run.poll() is None and count_done(out) < before + num_more:
            time.sleep(0.001)
        (os.killpg if number == signal.SIGKILL else os.kill)(run.pid, number)
        _, error = run.communicate()
        if out.exists():
            break
        num_kills += 1
        if number != signal.SIGKILL:
            assert run.returncode == 130 and b"stopped; the same command goes on" in error
            wait_for(lambda: not is_running(f"WORK={out}"))
        assert count_done(out) >= before + num_more
    assert num_kills
    if not out.exists():
        run = start(corpus, vocab, out)
        assert run.communicate()[1] is not None and run.returncode == 0
    assert contents(out) == contents(tmp_path / "whole")


def test_a_missing_segmenter_is_told_whatever_the_workers(
    corpus: Path, vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jieba", None)
    for workers in (1, 2):
        with pytest.raises(UserError, match=r"pip install 'bertie\[chinese\]'"):
            settings = recipe("prepare.segmenter=jieba")
            prepare([corpus], vocab, tmp_path / "s", settings, workers=workers)
    assert not (tmp_path / "s.draft").exists()


def test_a_draft_is_taken_up_part_by_part(
    corpus: Path, vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare([corpus], vocab, tmp_path / "whole", recipe(), workers=1)
    import bertie.prepare as module

    done = []
    run = module.Worker.run

    def stop_after_three(self, unit, stem):  # type: ignore[no-untyped-def]
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(unit)
        yield from run(self, unit, stem)

    monkeypatch.setattr(module.Worker, "run", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        prepare([corpus], vocab, tmp_path / "s", recipe(), workers=1)
    assert not (tmp_path / "s").exists()
    again = []

    def count(self, unit, stem):  # type: ignore[no-untyped-def]
        again.append(unit)
        yield from run(self, unit, stem)

    monkeypatch.setattr(module.Worker, "run", count)
    prepare([corpus], vocab, tmp_path / "s", recipe(), workers=1)
    assert not set(again) & set(done)
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


def stop_before_joining(corpus: Path, vocab: Path, out: Path) -> list[Path]:
    """The summaries of the parts of a run that was stopped when all of them were made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertie.prepare.join_all", lambda *_: exit("stopped"))
        with pytest.raises(SystemExit):
            prepare([corpus], vocab, out, recipe(), workers=1)
    return sorted(out.with_name(f"{out.name}.draft").glob("part-*.json"))


@pytest.mark.parametrize("suffix", [".ids", ".words", ".sentences", ".documents", ".json"])
def test_a_part_that_is_not_whole_is_made_again(
    corpus: Path, vocab: Path, tmp_path: Path, suffix: str
) -> None:
    prepare([corpus], vocab, tmp_path / "whole", recipe(), workers=1)
    damages: list[Callable[[Path], object]] = [
        Path.unlink,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
    ]
    for number, damage in enumerate(damages):
        out = tmp_path / str(number)
        damage(stop_before_joining(corpus, vocab, out)[number].with_suffix(suffix))
        prepare([corpus], vocab, out, recipe(), workers=1)
        assert contents(out) == contents(tmp_path / "whole")


def test_a_draft_of_other_settings_is_not_taken_up(
    corpus: Path, vocab: Path, tmp_path: Path
) -> None:
    draft = tmp_path / "s.draft"
    draft.mkdir()
    (draft / "plan.json").write_text(
        '{"sources": {}, "units": [], "tokenizer": "", "settings": {}}'
    )
    with pytest.raises(UserError, match="unfinished work of another run"):
        prepare([corpus], vocab, tmp_path / "s", recipe(), workers=1)


def test_somebodys_own_folder_named_as_a_draft_is_left_alone(
    corpus: Path, vocab: Path, tmp_path: Path
) -> None:
    chapter = tmp_path / "novel.draft" / "store" / "chapter1.txt"
    chapter.parent.mkdir(parents=True)
    chapter.write_text("x")
    with pytest.raises(UserError, match=r"holds something else: store/chapter1.txt"):
        prepare([corpus], vocab, tmp_path / "novel", recipe(), workers=1)
    assert chapter.read_text() == "x" and len(list(chapter.parent.iterdir())) == 1


def test_what_is_there_is_not_overwritten(corpus: Path, vocab: Path, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mine").write_text("x")
    with pytest.raises(UserError, match="exists"):
        prepare([corpus], vocab, tmp_path / "s", recipe(), workers=1)
    assert (tmp_path / "s" / "mine").exists()


def test_two_at_once_do_not_share_a_draft(corpus: Path, vocab: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "s", []

    def prepare_again(what: str, done: int, total: int) -> None:
        with pytest.raises(UserError, match="another process is at work in"):
            prepare([corpus], vocab, out, recipe(), workers=1)
        seen.append(what)

    made = prepare([corpus], vocab, out, recipe(), workers=1, on_progress=prepare_again)
    assert {"encoding text", "joining"} <= set(seen)
    assert open_store(out).manifest == made.train and not (tmp_path / "s.draft").exists()


def test_a_store_goes_where_a_link_leads(corpus: Path, vocab: Path, tmp_path: Path) -> None:
    for name, is_there in (("there", True), ("coming", False)):
        target, link = tmp_path / "disk" / name, tmp_path / f"to-{name}"
        target.parent.mkdir(exist_ok=True)
        if is_there:
            target.mkdir()
        link.symlink_to(target)
        prepare([corpus], vocab, link, recipe(), workers=1)
        assert link.is_symlink() and open_store(link) and open_store(target)


def test_a_file_may_have_any_name(vocab: Path, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.jsonl")  # Latin-1
    path.write_text('{"text": "the word"}\n{"text": "the"}\n{"texts": "word"}\n')
    settings = recipe("corpus.held_out_percent=0")
    made = prepare([path], vocab, tmp_path / "s", settings, workers=1)
    assert open_store(tmp_path / "s").manifest == made.train
    assert list(made.train.sources) == [f"{tmp_path}/caf\\xe9.jsonl"]


def test_a_store_may_lie_among_the_text(corpus: Path, vocab: Path, tmp_path: Path) -> None:
    """What an earlier run left is not text: a run goes on, and another one makes the same store."""
    text = tmp_path / "text"
    shutil.copytree(corpus, text)
    shutil.copytree(vocab, text / "vocab")
    summaries = stop_before_joining(text, vocab, text / "a")
    made = prepare([text], vocab, text / "a", recipe(), workers=1)
    assert len(summaries) > 4
    again = prepare([text], vocab, text / "b", recipe(), workers=1)
    assert contents(text / "a") == contents(text / "b")
    assert made.problems.counts[OWN_FOLDER] == 2 and again.problems.counts[OWN_FOLDER] == 2


def test_a_field_that_no_line_has_is_told(vocab: Path, tmp_path: Path) -> None:
    lines = [{"text": "the word", "source": "ads"}, {"text": "the"}, {"text": "a b c"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = recipe(
        "corpus.held_out_percent=0",
        'corpus.without={source = ["ads"], "meta.lang" = ["de"]}',
        "corpus.unit_bytes=20",
    )
    made = prepare([tmp_path / "a.jsonl"], vocab, tmp_path / "s", settings, workers=2)
    assert made.train.num_documents == 2
    assert made.problems.places[UNSEEN] == ["meta.lang"] and made.problems.num_skipped == 0


def test_a_full_disk_is_told_with_its_folder(
    corpus: Path, vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_up(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("bertie.prepare.PartWriter.finish", fill_up)
        with pytest.raises(UserError, match=r"cannot write in .*/s.draft: No space left"):
            prepare([corpus], vocab, tmp_path / "s", recipe(), workers=1)
    prepare([corpus], vocab, tmp_path / "s", recipe(), workers=1)


def test_a_place_that_no_store_can_take_is_refused_at_once(
    corpus: Path, vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "disk"
    out.mkdir()
    monkeypatch.chdir(out)
    with pytest.raises(UserError, match=r"the current folder, .* --out /.*disk/store"):
        prepare([corpus], vocab, Path(), recipe(), workers=1)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == out)
    with pytest.raises(UserError, match=r"a mount point, .* --out /.*disk/store"):
        prepare([corpus], vocab, out, recipe(), workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]


def test_a_corpus_without_words_is_refused(vocab: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n\n \0")
    with pytest.raises(UserError, match="documents_empty 1"):
        prepare([tmp_path / "a.txt"], vocab, tmp_path / "s", recipe(), workers=1)


def test_info_shows_counts_lengths_and_instances(corpus: Path, vocab: Path, tmp_path: Path) -> None:
    (tmp_path / "twice.txt").write_text("ß ß ß\n\nß ß ß", encoding="utf-8")  # ß is [UNK]
    made = prepare([corpus, tmp_path / "twice.txt"], vocab, tmp_path / "s", recipe(), workers=1)
    before = contents(tmp_path / "s")
    counts, sentences, documents, instances = describe(str(tmp_path / "s"), length=32)
    assert contents(tmp_path / "s") == before, "nothing is written"
    rows = {name: (count, share) for name, count, share in counts.rows}
    assert rows["tokens"][0] == f"{made.train.num_tokens:,}"
    assert rows["documents duplicate"][0] == f"{made.train.statistics['documents_duplicate']}"
    assert rows["documents short"][0] == "0"
    store = open_store(tmp_path / "s")
    unknown = int((store.ids == store.load_tokenizer().id("[UNK]")).sum())
    assert 0 < unknown < made.train.statistics["unknown_tokens"]
    assert rows["[UNK]"] == (f"{unknown:,}", f"{unknown / len(store.ids):.4%} of the tokens")
    for table in (sentences, documents):
        assert sum(float(row[1].rstrip("%")) for row in table.rows) == pytest.approx(100, abs=0.5)
    assert len(instances.rows) == 4 and instances.notes == ()
    for pair, text in instances.rows:
        assert pair in ("B follows A", "B is from elsewhere")
        assert text.startswith("[CLS] ") and text.endswith(" [SEP]") and "{" in text


def test_info_of_a_single_document(vocab: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.txt"
    one.write_text("The word. The word the word.")
    settings = recipe("corpus.held_out_percent=0")
    prepare([one], vocab, tmp_path / "single", settings, workers=1)
    assert describe(str(tmp_path / "single"))[3].rows[0][0] == "no pair"


def test_info_tells_where_an_epoch_holds_little_of_the_text(vocab: Path, tmp_path: Path) -> None:
    settings = recipe("corpus.held_out_percent=0")
    for name, mark in (("with", ". The"), ("without", "")):
        path = tmp_path / f"{name}.txt"
        path.write_text("\n\n".join(f"{n}" + f" the word{mark}" * 500 for n in range(6)))
        prepare([path], vocab, tmp_path / name, settings, workers=1)
        notes = describe(str(tmp_path / name), length=32)[3].notes
        assert len(notes) == (name == "without")
    assert notes[0].startswith("An epoch of these instances holds ") and "kind" in notes[0]
