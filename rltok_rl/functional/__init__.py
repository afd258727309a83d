"""Pure maths on tensors [*B, T]: no modules, no keys, no state."""
