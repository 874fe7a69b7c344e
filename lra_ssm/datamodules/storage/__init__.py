"""What is prepared, and how it is on disk: choice of examples, vocabulary, format, locks. Needs no torch."""
