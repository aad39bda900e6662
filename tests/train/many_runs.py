"""Pre-trainings one after the other in the processes of one torchrun: its start takes seconds.

    python -m torch.distributed.run ... -m tests.train.many_runs STORE FOLDER NAMES.json

The file has settings by name; each run is FOLDER/NAME. What is done is not done again.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import bertie.pretrain
from bertie.cli import leave
from bertie.data.store import open_store
from bertie.train.distributed import open_world
from tests.train.runs import recipe, run


def main() -> None:
    store, folder, names = map(Path, sys.argv[1:])
    with open_world("cpu") as world:
        # The processes meet once: gloo does not always come back from a second parting.
        bertie.pretrain.open_world = lambda device: nullcontext(world)
        for name, sets in json.loads(names.read_text(encoding="utf-8")).items():
            if not (folder / name / "model").exists():
                run(open_store(store), folder / name, recipe(*sets))
            world.wait()
        leave()


if __name__ == "__main__":
    main()
