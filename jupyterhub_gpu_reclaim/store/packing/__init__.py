"""Turns plain bytes into encrypted blocks and packs, without the known chunks."""
