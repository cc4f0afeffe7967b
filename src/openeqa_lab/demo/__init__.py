"""Three small episodes with drawn frames and two dozen questions, for a first run."""
