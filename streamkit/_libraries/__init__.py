"""What a library provides to take part, what is known of each one, and what is installed."""
