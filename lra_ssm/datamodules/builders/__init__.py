"""From what was read or generated to a prepared folder: encoding, splits, limits; one file per dataset."""
