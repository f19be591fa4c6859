"""How reports are shown: in the terminal, as pages and as pictures."""
