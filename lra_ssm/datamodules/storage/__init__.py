"""What prepared data is on disk: format, writer, the data root, locks, and preparing once. Needs no torch."""
