"""Runs as pages that a browser opens without a network: one file, no scripts."""
