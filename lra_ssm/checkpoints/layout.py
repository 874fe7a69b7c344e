"""The files of a saved model by name."""

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
TOKENIZERS, TOKENIZER_CONFIG = ("vocabulary.json", "tokenizer.json"), "tokenizer_config.json"
RUN_CONFIG, CARD = "config.yaml", "README.md"
# What a new model replaces where an older one lies, as patterns; the card, which a new one may lack, is its owner's.
REPLACED = [CONFIG, WEIGHTS, INDEX, "model-*-of-*.safetensors", *TOKENIZERS, TOKENIZER_CONFIG, RUN_CONFIG]
