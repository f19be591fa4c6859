"""What StreamKit knows of this library without importing it; the adapter is beside."""
