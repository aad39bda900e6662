"""Which verb needs which head; and where a model lacks it, which model could do it."""

from typing import NamedTuple

from bertie.errors import UserError


class Ability(NamedTuple):
    """What a head lets a model do."""

    head: str
    title: str  # the head, in words
    does: str
    could: str  # the model to take instead


PRE_TRAINED = (
    "one that was pre-trained and not fine-tuned, as bertie pretrain writes it, or a "
    "BertForMaskedLM or BertForPreTraining of Hugging Face"
)
FINE_TUNED = (
    "one that was fine-tuned for it (bertie finetune --task {task}), or a {name} of Hugging Face"
)
CLASSIFIER = FINE_TUNED.format(task="classify", name="BertForSequenceClassification")
ABILITIES = {
    "fill": Ability("masked_lm", "masked LM", "fill masks", PRE_TRAINED),
    "score": Ability("masked_lm", "masked LM", "score texts", PRE_TRAINED),
    "classify": Ability("sequence", "sequence", "classify texts", CLASSIFIER),
    "classify_pairs": Ability("sequence", "sequence", "classify pairs", CLASSIFIER),
    "tag": Ability(
        "token",
        "token",
        "tag texts",
        FINE_TUNED.format(task="tag", name="BertForTokenClassification"),
    ),
    "answer": Ability(
        "span",
        "span",
        "answer questions",
        FINE_TUNED.format(task="span", name="BertForQuestionAnswering"),
    ),
    "choose": Ability(
        "choice",
        "choice",
        "choose between options",
        FINE_TUNED.format(task="choice", name="BertForMultipleChoice"),
    ),
}


def check_ability(verb: str, heads: tuple[str, ...], source: object) -> None:
    """That a model with these heads can do it."""
    ability = ABILITIES[verb]
    if ability.head not in heads:
        raise UserError(
            f"{source} cannot {ability.does}: it has no {ability.title} head "
            f"(heads: {', '.join(heads) or 'none'}); take {ability.could}"
        )
