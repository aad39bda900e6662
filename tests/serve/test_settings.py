"""Limits are numbers that limit."""

import pytest

from bertie.config import read_recipe
from bertie.errors import UserError
from bertie.serve.settings import ServeRecipe


@pytest.mark.parametrize("setting", ["limits.seconds", "limits.waiting_s", "batching.wait_s"])
@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "0", "-1", "1e300"])
def test_no_limit_at_all_is_refused(setting: str, value: str) -> None:
    with pytest.raises(UserError, match=r"is more than 0, and 1e\+12 at most; found"):
        read_recipe(ServeRecipe, None, [f"{setting}={value}"])


def test_hosts_are_a_list() -> None:
    recipe = read_recipe(ServeRecipe, None, ['allow_hosts=["a.example"]'])
    assert recipe.allow_hosts == ("a.example",)
