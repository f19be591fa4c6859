"""How work is named and shown: the names of kernels, the colour and letter of each library."""
