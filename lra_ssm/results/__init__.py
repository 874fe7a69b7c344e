"""What many runs gave: tables with the published rows, curves, ablations. Needs neither torch nor lightning."""
