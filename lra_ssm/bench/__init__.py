"""`lra-ssm bench`: what the package costs in time and memory, against the obvious PyTorch ways to write the same.

work.py says what a measured thing is; measure.py and memory.py take its time and its memory, compare.py puts several
side by side; operators.py (scan.py, s4d.py, growth.py, ceilings.py), layers.py, steps.py (profile.py), data.py and
tokens.py are the five suites; report.py and plot.py say what came out.
"""
