"""BERT, end to end: from a folder of raw text to a served model."""

__version__ = "0.1.0"
