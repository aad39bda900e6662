"""A model directory in use."""
