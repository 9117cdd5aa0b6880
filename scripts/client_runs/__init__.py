"""What `make test-clients` needs: the clients, their environments, and providers that answer them."""
