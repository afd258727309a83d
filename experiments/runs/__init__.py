"""One training and its folder on disk: train, record, resume, read back."""
