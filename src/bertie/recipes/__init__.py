"""One TOML file per run."""
