"""Studies: shipped ones are valid, equal settings are one run, budgets are equal."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bertie.config import build, read_toml
from bertie.data.store import Store, open_store
from bertie.errors import UserError
from bertie.study import Scale, Study, merge, plan_pretraining, plan_tuning, read_study
from bertie.tuning import FinetuneRecipe

OWN = {"recipe": "classify", "train": "a.csv", "metric": "accuracy"}
SHIPPED = {path.stem for path in (Path(__file__).parents[1] / "src/bertie/studies").glob("*.toml")}


def scale_of(store: Store, **values: object) -> Scale:
    return Scale(corpus=store.folder, data=Path("data"), out=Path("out"), **values)  # type: ignore[arg-type]


def test_these_studies_are_shipped() -> None:
    wanted = {"table5", "table6", "table8", "figure5", "mask-rate", "relatives", "input"}
    assert wanted == SHIPPED


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_shipped_study_can_be_planned(name: str, store: Store) -> None:
    study, scale = read_study(name), scale_of(store, seeds=2)
    made = plan_pretraining(study, scale, open_store(store.folder))
    assert len(made) == 2 * len(study.rows)
    assert len({run.recipe.train.budget for run in made}) == 1
    tunings = plan_tuning(study, scale, made)
    asked = {(run.row, run.task) for run in tunings}
    assert {row for row, _ in asked} == set(study.rows)
    assert len({run.folder for run in tunings}) == len(tunings)
    for run in made:
        assert run.recipe.train.seed == run.recipe.data.loader.seed == run.seed


def test_table5_shares_the_model_that_gets_an_lstm_on_top(store: Store) -> None:
    study = read_study("table5")
    made = {run.row: run for run in plan_pretraining(study, scale_of(store), store)}
    assert made["left"].folder == made["left-bilstm"].folder
    assert len({run.folder for run in made.values()}) == 3
    layers = {
        run.row: run.recipe.tune.bilstm_layers
        for run in plan_tuning(study, scale_of(store), [*made.values()])
    }
    assert layers == {"full": 0, "no-nsp": 0, "left": 0, "left-bilstm": 1}


def test_a_recipe_without_a_model_is_refused(store: Store) -> None:
    study = replace(read_study("table5"), recipe="domain-adapt")
    with pytest.raises(UserError, match=r"rows\.full: name a model to start from"):
        plan_pretraining(study, scale_of(store), store)
    begun = replace(study, pretrain={"start": "here", "train": {"budget": "1k tokens"}})
    assert plan_pretraining(begun, scale_of(store), store)


def test_studies_share_the_runs_that_are_equal(store: Store) -> None:
    folders = [
        {run.folder for run in plan_pretraining(read_study(name), scale_of(store), store)}
        for name in ("table5", "table8", "relatives", "input", "mask-rate")
    ]
    assert len(set.intersection(*folders)) == 1  # BERT itself


def test_where_patience_may_end_them_runs_that_look_otherwise_are_others(store: Store) -> None:
    def folders(*sets: str) -> set[Path]:
        made = plan_pretraining(read_study("table5", sets), scale_of(store), store)
        return {run.folder for run in made if run.row in ("full", "no-nsp")}

    rows = [f"rows.{name}.pretrain.train.evaluate_every=7" for name in ("full", "no-nsp")]
    plain, often = folders(), folders(*rows)
    patient = folders("pretrain.train.patience=3")
    both = folders("pretrain.train.patience=3", *rows)
    assert plain == often
    assert len(plain | patient | both) == 3 * len(plain)


def test_a_head_on_features_is_asked_only_what_it_can_answer(store: Store) -> None:
    study = read_study("relatives")
    made = plan_pretraining(study, scale_of(store), store)
    tunings = plan_tuning(study, scale_of(store), made)
    frozen = {run.task for run in tunings if run.is_frozen}
    assert {run.row for run in tunings if run.is_frozen} == {"elmo"}
    assert frozen == set(study.tasks) - {"SQuAD"}


def test_size_budget_device_and_tasks_come_from_the_command_line(store: Store) -> None:
    study = read_study("table5", ["pretrain.optim.peak=5e-4"])
    scale = scale_of(store, size="2/64/2", budget="3 minutes", device="cpu", tasks=("MRPC",))
    made = plan_pretraining(study, scale, store)
    for run in made:
        assert run.recipe.model is not None
        assert (run.recipe.model.num_layers, run.recipe.model.hidden_size) == (2, 64)
        assert run.recipe.train.budget == "3 minutes"
        assert run.recipe.train.device == "cpu"
        assert run.recipe.optim.peak == 5e-4
    assert {run.task for run in plan_tuning(study, scale, made)} == {"MRPC"}
    with pytest.raises(UserError, match="no task CoLA in the study; there are: SST-2"):
        plan_tuning(study, replace(scale, tasks=("CoLA",)), made)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": {"full": {"pretrain": {"train": {"budget": "1M tokens"}}}}}, "a budget of its"),
        ({"tasks": ["SST-2", "MRPC", "SQuAD", "Unheard"]}, "no task Unheard; there are: SST-2"),
        ({"rows": {"full": {"paper": {"CoLA": 1.0}}}}, "paper has CoLA, which is no task here"),
        ({"points": [0.0]}, "points are shares of the budget"),
        ({"points": [1.0, 0.5]}, "points ascend, each is there once"),
        ({"points": [0.5, 0.5]}, "points ascend, each is there once"),
        ({"rowz": {}}, "no setting rowz"),
        (
            {"rows": {"full": {"frozen": True, "finetune": {"optim": {"peak": 1e-3}}}}},
            r"rows.full.finetune.optim does not reach a head on features; set it in \[frozen\]",
        ),
        (
            {"own_tasks": {"a": OWN | {"frozen": True, "finetune": {"tune": {"seeds": 2}}}}},
            "own_tasks.a.finetune.tune does not reach a head on features",
        ),
        ({"own_tasks": {"a, b": OWN}}, "'a, b' has a comma, at which --tasks is cut"),
    ],
)
def test_studies_that_contradict_themselves_are_refused(
    change: dict[str, object], message: str
) -> None:
    path = Path(__file__).parents[1] / "src/bertie/studies/table5.toml"
    with pytest.raises(UserError, match=message):
        build(Study, merge(read_toml(path), change))


def test_steps_are_no_equal_budget(store: Store) -> None:
    with pytest.raises(UserError, match="equal budgets in tokens or minutes; found '10 steps'"):
        plan_pretraining(read_study("table5"), scale_of(store, budget="10 steps"), store)


def test_a_row_that_cannot_be_built_is_named(store: Store) -> None:
    study = read_study("table5", ["rows.left.pretrain.model.attention=both"])
    with pytest.raises(UserError, match=r"rows.left: the objective lm: .* goes with"):
        plan_pretraining(study, scale_of(store), store)


def test_an_unknown_study_is_told_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no study table9: .* figure5, input, mask-rate"):
        read_study("table9")


def test_too_few_layers_for_a_head_are_told_at_once(store: Store) -> None:
    study, scale = read_study("table8"), scale_of(store, size="2/64/2")
    with pytest.raises(UserError, match="concat-last-4 reads more layers than the model has"):
        plan_tuning(study, scale, plan_pretraining(study, scale, store))


def test_a_size_is_refused_where_rows_have_their_own(store: Store) -> None:
    with pytest.raises(UserError, match=r"rows.two: has a model.num_layers of its own, so --size"):
        plan_pretraining(read_study("table6"), scale_of(store, size="2/64/2"), store)


def test_static_masks_that_would_be_new_all_the_time_are_refused(store: Store) -> None:
    study, num_tokens = read_study("input"), store.manifest.num_tokens
    with pytest.raises(UserError, match=r"rows.static: .*static_copies = 1 changes nothing in 1 p"):
        plan_pretraining(study, scale_of(store, budget=f"{num_tokens} tokens"), store)
    assert plan_pretraining(study, scale_of(store, budget=f"{2 * num_tokens} tokens"), store)


def test_what_changes_nothing_that_is_learned_makes_no_other_run(store: Store) -> None:
    plain = read_study("table8")
    changed = read_study(
        "table8",
        [
            "pretrain.train.save_every=7",
            "pretrain.train.evaluate_every=9",
            "pretrain.data.loader.num_workers=0",
            "finetune.train.log_every=3",
        ],
    )
    one = scale_of(store, device="cpu")
    two = replace(one, data=Path("elsewhere"), device="cpu")
    for study, other in ((plain, changed), (plain, plain)):
        models = plan_pretraining(study, one, store), plan_pretraining(other, two, store)
        assert [run.folder for run in models[0]] == [run.folder for run in models[1]]
        tunings = plan_tuning(study, one, models[0]), plan_tuning(other, two, models[1])
        assert [run.folder for run in tunings[0]] == [run.folder for run in tunings[1]]
    cards = plan_pretraining(plain, replace(one, device="cuda"), store)
    assert cards[0].folder == plan_pretraining(plain, one, store)[0].folder


def test_what_changes_a_score_makes_another_run(store: Store) -> None:
    scale = scale_of(store)
    made = plan_pretraining(read_study("table8"), scale, store)

    def folders(*sets: str, is_frozen: bool) -> set[Path]:
        runs = plan_tuning(read_study("table8", sets), scale, made)
        return {run.folder for run in runs if run.is_frozen == is_frozen}

    tuned, frozen = folders(is_frozen=False), folders(is_frozen=True)
    for change in ("optim.peak=1e-5", "tune.seeds=2", "train.precision=fp16"):
        assert not folders(f"finetune.{change}", is_frozen=False) & tuned
        assert folders(f"finetune.{change}", is_frozen=True) == frozen
    assert folders("frozen.head.dropout=0.5", is_frozen=False) == tuned
    assert not folders("frozen.head.dropout=0.5", is_frozen=True) & frozen
    assert not folders("finetune.task.max_length=64", is_frozen=True) & frozen


def test_models_on_the_way_are_those_of_an_equal_run(store: Store) -> None:
    (_, no_nsp, left, _), (masked, other_left) = (
        plan_pretraining(read_study(name), scale_of(store), store) for name in ("table5", "figure5")
    )
    assert (masked.folder, other_left.folder) == (no_nsp.folder, left.folder)
    assert (no_nsp.points, masked.points) == ((1.0,), (0.2, 0.4, 0.6, 0.8, 1.0))


def test_fine_tuning_is_set_for_all_tasks_in_one_place(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ["finetune.optim.peak=2e-4", "finetune.tune.batch_size=16"]
    sets += ["rows.left.finetune.optim.peak=3e-4"]

    def tuned(device: str) -> dict[str, FinetuneRecipe]:
        study, scale = read_study("table5", sets), scale_of(store, device=device, tasks=("MRPC",))
        made = plan_pretraining(study, scale, store)
        return {run.row: run.recipe for run in plan_tuning(study, scale, made)}

    peaks = {row: recipe.optim.peak for row, recipe in tuned("cpu").items()}
    assert peaks == {"full": 2e-4, "no-nsp": 2e-4, "left": 3e-4, "left-bilstm": 2e-4}
    assert {recipe.tune.batch_size for recipe in tuned("cpu").values()} == {16}
    for is_there in (False, True):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=is_there: there)
        assert tuned("cpu")["full"].train.precision == "fp32"
        assert tuned("cuda")["full"].train.precision == "bf16"
        assert tuned("")["full"].train.precision == ("bf16" if is_there else "fp32")
    sets.append("finetune.train.precision=fp32")
    assert tuned("cuda")["full"].train.precision == "fp32"


def test_models_on_the_way_are_saved_often_enough(store: Store) -> None:
    """Whatever the budget: from one point to the next there are some."""
    for budget in ("600k tokens", "200M tokens"):
        run = plan_pretraining(read_study("figure5"), scale_of(store, budget=budget), store)[0]
        data = run.recipe.data
        tokens = data.loader.batch_size * data.instances.max_length * run.recipe.train.save_every
        assert run.recipe.train.save_every == 1 or tokens <= 0.2 * 200e6 / 8
        assert run.recipe.train.keep > 1000


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("finetune.train=3", "train is a table of settings, or a value, but not both"),
        ("rows.left.pretrain.train=4", "train is a table of settings, or a value, but not both"),
        ("pretrain.train.seed=3", "each row is run with --seeds 0, 1, .."),
        ("rows.left.pretrain.data.loader.seed=5", "rows.left.pretrain.data.loader.seed: each row"),
        ("rows.left.finetune.train.seed=5", "rows.left.finetune.train.seed: each row is run"),
        ('own_tasks={MRPC={recipe="classify",train="a",metric="acuracy"}}', "MRPC: no metric"),
        ('own_tasks={MRPC={recipe="study",train="a",metric="f1"}}', "MRPC: no setting"),
        ('rows.left.finetune.task.name="clasify"', "rows.left, task MRPC: no task 'clasify'"),
        ('rows.left.finetune.task.max_length="long"', "rows.left, task MRPC: task.max_length"),
        ('rows.left.finetune.train.budget="9 epochs"', "rows.left is fine-tuned with a budget"),
    ],
)
def test_settings_that_would_be_lost_are_refused(store: Store, change: str, told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        study = read_study("table5", [change])
        scale = scale_of(store, tasks=("MRPC",))
        plan_tuning(study, scale, plan_pretraining(study, scale, store))


def test_what_a_study_needs_is_told(tmp_path: Path) -> None:
    for text, told in (
        ('asks = "?"', "the setting title is missing"),
        (
            'title = "t"\nasks = "?"\nrecipe = "study"\ntasks = ["MRPC"]\n[rows.a]\nfrozen = true',
            "the setting rows.a.title is missing",
        ),
    ):
        path = tmp_path / "study.toml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=told):
            read_study(path)
    with pytest.raises(UserError, match="bertie table7"):
        read_study("table7")
