"""What a driver does: each function of a section observes it on raw handles."""
