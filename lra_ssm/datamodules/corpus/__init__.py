"""Any corpus of text: a folder of .txt, .jsonl and .parquet files."""
