"""Many runs: a sweep file, its folder, Slurm or processes here, and where each run stands."""
