"""What ``make test-suites`` consists of."""
