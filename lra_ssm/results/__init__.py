"""What many runs gave: tables beside the published rows, curves, ablations. Needs neither torch nor lightning."""
