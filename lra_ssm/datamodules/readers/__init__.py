"""Published files, and users' own, read and checked; one file per dataset. Needs no torch."""
