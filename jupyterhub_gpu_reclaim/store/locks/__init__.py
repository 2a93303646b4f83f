"""Who writes, uploads or deletes what now, said in the store itself."""
