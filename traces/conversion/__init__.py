"""Turns the staged raw extracts into the shipped trace files. Called by `traces/convert.py` only."""
