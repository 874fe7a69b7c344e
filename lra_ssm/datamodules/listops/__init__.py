"""ListOps: nested operators on digits, generated or from the Long Range Arena's files."""
