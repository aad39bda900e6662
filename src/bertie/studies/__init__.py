"""One TOML file per study: a recipe, named differences of it, and the tasks that judge them."""
