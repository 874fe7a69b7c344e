"""The files of a saved model by name."""

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
TOKENIZERS = ("vocabulary.json", "tokenizer.json")
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"  # of transformers
RUN_CONFIG = "config.yaml"
CARD = "README.md"
# Patterns of what a new model replaces; the card, which a new one may lack, stays.
REPLACED = [CONFIG, WEIGHTS, INDEX, "model-*-of-*.safetensors", *TOKENIZERS, TOKENIZER_CONFIG, RUN_CONFIG]
