"""Many runs: a sweep file's runs, their folder, one Slurm array or some processes here, and where each stands."""
