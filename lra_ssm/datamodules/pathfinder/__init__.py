"""Pathfinder and Path-X: images that are drawn here, or the Long Range Arena's."""
