"""Every call of the CUDA driver, and every error code turned into DriverError."""
