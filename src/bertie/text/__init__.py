"""Strings to tokens; knows nothing of torch."""
