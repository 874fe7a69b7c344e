"""CIFAR-10 as sequences of pixels: the Long Range Arena's Image in gray, and sCIFAR in color."""
