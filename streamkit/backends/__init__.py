"""One folder a library: how its streams are read, built and made current.

No file here knows a StreamKit stream, and each library is known only in its own folder. The
contract, ``protocols.adapters``, says what the functions of an adapter do; their docstrings say
only what is special about the library. The folders' names begin with an underscore because a type
checker without torch would otherwise take ``import torch`` for the folder.
"""
