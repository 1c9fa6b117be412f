"""Tests of the Python package; standard library only, run with ``python -m unittest discover``."""
