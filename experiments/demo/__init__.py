"""Demo: train boundary policies in minutes, and show what they learned."""
