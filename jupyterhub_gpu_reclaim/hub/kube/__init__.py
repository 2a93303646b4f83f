"""Sessions in pods: KubeSpawner's, with the session's init in them."""
