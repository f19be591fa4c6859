"""Arrays for other processes: the lease that keeps one, and the token that opens it there."""
