"""Sweeps: a file that lists runs, and the Slurm array or the local processes that train them."""
