"""Plain bytes into encrypted blocks, blocks into packs, what stands there left out."""
