"""Labels: what each weighs, and which of two F1 is of."""

from collections import Counter

import pytest

from bertie.errors import UserError
from bertie.tasks.labels import balance, check_weights, choose_positive, sort_labels


def test_numbers_stand_by_value_and_names_by_name() -> None:
    assert sort_labels(Counter(["10", "9", "-1"])) == ("-1", "9", "10")
    assert sort_labels(Counter(["10", "9", "x"])) == ("10", "9", "x")


def test_balanced_labels_weigh_the_same_and_an_example_one() -> None:
    counts = Counter({"a": 6, "b": 2})
    weights = balance(counts, ("a", "b", "c"))
    assert weights.keys() == {"a", "b"}
    assert weights["a"] * 6 == pytest.approx(weights["b"] * 2)
    assert sum(weights[label] * count for label, count in counts.items()) == pytest.approx(8)


@pytest.mark.parametrize("weight", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_weight_is_above_zero(weight: float) -> None:
    """Else the label would not be trained, and nobody would know."""
    check_weights({"a": 0.5}, ("a", "b"))
    with pytest.raises(UserError, match=r"class_weights.b is above 0; found"):
        check_weights({"a": 1.0, "b": weight}, ("a", "b"))
    with pytest.raises(UserError, match="class_weights has 'c', which is not a label"):
        check_weights({"c": 1.0}, ("a", "b"))


def test_f1_is_of_the_rarer_label_unless_it_is_said() -> None:
    labels = ("fraud", "normal")
    assert choose_positive("", labels, Counter(fraud=17, normal=83)) == "fraud"
    assert choose_positive("", labels, Counter(fraud=83, normal=17)) == "normal"
    assert choose_positive("", labels, Counter()) == "normal"
    assert choose_positive("normal", labels, Counter(fraud=17, normal=83)) == "normal"
    assert choose_positive("", ("a", "b", "c"), Counter(a=1)) == ""
    with pytest.raises(UserError, match=r"task.positive is 'no'; the labels are: fraud, normal"):
        choose_positive("no", labels, Counter())
    with pytest.raises(UserError, match=r"task.positive is for two classes; found 'a'"):
        choose_positive("a", ("a", "b", "c"), Counter())
