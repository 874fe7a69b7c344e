"""Tables, curves and ablations of many runs, next to published rows; imports neither torch nor lightning."""
