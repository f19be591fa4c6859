"""The doctor: faults of this installation and of this process."""
