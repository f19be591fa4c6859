"""The scope: one stream current in every loaded library, exactly restored."""
