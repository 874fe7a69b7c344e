"""What the datasets of images share: decoding, splits, preparing, pixels as sequences. Readers need no torch."""
