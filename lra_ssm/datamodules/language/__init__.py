"""Text for language models: documents, tokenizers, prepared tokens, batches."""
