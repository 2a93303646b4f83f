"""What stands below the product's seams, each as its contract says."""
