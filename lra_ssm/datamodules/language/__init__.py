"""Text for language models: from corpora to tokens in shards, and from these to batches."""
