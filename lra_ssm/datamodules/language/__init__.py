"""Text for language models: documents of any corpus, tokenizers, sharded tokens, batches."""
