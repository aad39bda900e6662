"""Fixtures of all tests. Real data lie in the folder `shared` beside the checkout, if at all."""

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from bertie.data.store import Store

# Without a GPU kernels run in Triton's interpreter; it must be asked for before Triton is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# The same examples in every run: a red test is a change's fault. To look for new ones:
# HYPOTHESIS_PROFILE=explore make test
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

SHARED = Path(os.environ.get("BERTIE_SHARED", Path(__file__).parents[2] / "shared"))
COMPARED: Counter[str] = Counter()
LONG = {
    Path(__file__).parent / name
    for name in (
        "cli/test_asking.py",
        "end_to_end/test_variants.py",
        "export/test_writing.py",
        "kernels/test_compiled.py",
        "serve/test_page.py",
        "test_ablate.py",
        "test_crew.py",
        "test_finetune.py",
        "test_readme.py",
        "test_tuning.py",
        "train/test_distributed.py",
    )
}


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real text, data sets and checkpoints; without it the test is skipped."""
    if not (SHARED / "README.md").is_file():
        pytest.skip(f"needs the real data that would lie in {SHARED} (or $BERTIE_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def compared() -> Counter[str]:
    """What was compared with a reference; the counts are printed at the end."""
    return COMPARED


@pytest.fixture(scope="session")
def weights(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks a real trained checkpoint by name; a test that cannot have it is skipped."""
    folder = tmp_path_factory.mktemp("weights")

    @cache
    def unpack(name: str) -> str:
        command = [str(shared / "weights" / "get"), name, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else f"{name} cannot be had: {done.stderr.strip()[-200:]}"

    def get(name: str) -> Path:
        package = "rxnfp" if name.startswith("rxnfp") else name
        if problem := unpack(package):
            pytest.skip(problem)
        return folder / name

    return get


@pytest.fixture(scope="session")
def unpacked(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks a real labelled data set by name."""
    folder = tmp_path_factory.mktemp("data")

    @cache
    def unpack(name: str) -> Path:
        subprocess.run([str(shared / "data" / "unpack"), str(folder), name], check=True)
        return folder / name

    return unpack


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model to fine-tune."""
    from tests.tuned import make_model

    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> "Store":
    """A token store of text that counts, for tiny runs; one of their own for each file of tests."""
    from tests.train.runs import write_text_store

    return write_text_store(tmp_path_factory.mktemp("text") / "store")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take a minute come first: one process must not have them left at the end."""
    items.sort(key=lambda item: item.path not in LONG)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker process hands over what it has counted."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["compared"] = dict(COMPARED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    COMPARED.update(getattr(node, "workeroutput", {}).get("compared", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for what, count in COMPARED.items():
        terminalreporter.write_line(f"compared with the reference: {count:,} {what}")
    skipped = len(terminalreporter.stats.get("skipped", []))
    terminalreporter.write_line(f"tests skipped for want of data or devices: {skipped}")
    options = terminalreporter.config.option
    if options.verbose > 0 or options.capture == "no":  # -v or -s
        show_differences(terminalreporter)


def show_differences(terminalreporter: pytest.TerminalReporter) -> None:
    """The largest difference that each test of equality has seen."""
    terminalreporter.section("largest differences (of the largest value)")
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "largest_difference":
                terminalreporter.write_line(f"{report.nodeid.partition('::')[2]:110} {value}")
