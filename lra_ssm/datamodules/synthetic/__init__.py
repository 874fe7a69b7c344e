"""The papers' synthetic tasks, which are generated while they are read: one file each, on one base."""
