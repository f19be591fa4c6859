"""One folder a library: how its streams are read, built and made current.

No file here knows a StreamKit stream, and none but its own knows a library. The folders' names
begin with an underscore: a type checker without torch would take ``import torch`` for the folder.
"""
