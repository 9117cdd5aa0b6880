"""Several gateways on one PostgreSQL database: a node of the cluster, its fence, and the changes it follows."""
