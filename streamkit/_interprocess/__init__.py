"""What two processes need of each other: who lives, locked files, tokens that go between them."""
