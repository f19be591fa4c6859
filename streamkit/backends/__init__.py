"""One file a library: how its streams are read, built and made current.

No file here knows a StreamKit stream, and none but its own knows a library.
"""
