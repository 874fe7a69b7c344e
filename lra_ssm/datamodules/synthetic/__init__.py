"""Tasks of the papers that are made as they are read: a file for each, on one base."""
