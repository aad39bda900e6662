"""What a model tells of itself."""

from bertie.infer.about import AT_HOME, find_scripts

ENGLISH = [f"w{'abc'[n % 3]}{n}ord" for n in range(AT_HOME)]
CHINESE = [chr(0x4E00 + n) for n in range(AT_HOME)]


def test_the_script_of_most_pieces_is_the_one_a_model_reads() -> None:
    assert find_scripts([*ENGLISH, *CHINESE[:600], "é", "a"]) == ("latin",)
    assert find_scripts([*CHINESE, *ENGLISH[:2600], *"abcdef"]) == ("han",)
    assert find_scripts(["[CLS]", "[MASK]", "[unused1]", "中", "a", "##b"]) == ("han",)


def test_a_vocabulary_may_be_at_home_in_two() -> None:
    assert find_scripts([*ENGLISH, "##ing", *CHINESE]) == ("latin", "han")


def test_one_of_neither_is_of_none() -> None:
    """As that of chemical formulae is."""
    assert find_scripts(["[CLS]", "C", "=", "O", "##1", "Br"]) == ()
