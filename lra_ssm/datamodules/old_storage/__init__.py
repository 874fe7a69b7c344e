"""What is prepared, and how it is on disk."""
