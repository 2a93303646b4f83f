"""Sessions on the Hub's own machine: processes in namespaces of their own."""
