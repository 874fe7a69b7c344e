"""What is drawn here instead of downloaded: ListOps, Pathfinder, stand-ins for Retrieval. Needs no torch."""
