"""Batches hold everything once, within their budget."""

from bertie.infer.batches import in_batches, make_batches


def test_batches_hold_all_and_stay_within_their_budget() -> None:
    lengths = [5, 2, 4, 9, 1, 1, 3, 20, 8]
    batches = list(make_batches(lengths, 9))
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    for batch in batches:
        assert sum(lengths[number] for number in batch) <= 9 or len(batch) == 1
    assert list(make_batches([], 9)) == []


def test_what_is_computed_comes_back_in_order() -> None:
    lengths = [5, 2, 4, 9000, 1]
    assert in_batches(lengths, lambda batch: [lengths[n] for n in batch]) == lengths
