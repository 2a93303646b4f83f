"""A simulator of the whole system: the product's own code over doubles, by seed."""
