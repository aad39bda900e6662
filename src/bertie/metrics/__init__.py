"""Scores, equal to the official scorers'. All are shares of 1; a score that is undefined is 0.0."""
