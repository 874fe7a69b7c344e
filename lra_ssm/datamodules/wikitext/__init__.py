"""WikiText-103 and WikiText-2, by words and raw."""
