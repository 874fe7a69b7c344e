"""What the datasets of images share."""
