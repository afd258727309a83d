"""Commands as they are typed at a shell, a file each, and how their options are read."""
