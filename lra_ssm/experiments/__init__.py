"""The papers' figures and tables as experiments: what is run, what is drawn, and whether the claim holds.

`artifacts.yaml` lists them all; an experiment is a class in a file of its own; `run.reproduce` runs one.
"""
