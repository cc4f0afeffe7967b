"""Cases, episodes and the files they come from."""
