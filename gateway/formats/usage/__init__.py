"""Upper bounds and estimates of what a request uses; the providers' own counts are with their formats."""
