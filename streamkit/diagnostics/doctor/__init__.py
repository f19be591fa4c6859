"""What is wrong with this installation and in this process."""
