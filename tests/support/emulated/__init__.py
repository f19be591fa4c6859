"""What the tests on the emulated driver share."""
