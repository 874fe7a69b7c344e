"""MNIST as sequences of pixels, permuted or not."""
