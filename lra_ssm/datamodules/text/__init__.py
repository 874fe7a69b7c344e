"""Text: IMDb's reviews, character by character."""
