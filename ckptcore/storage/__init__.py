"""Every effect on a disk: opening, reading, writing, renaming, locking, hashing."""
