"""Observability for operators: process health, metrics and traces."""
